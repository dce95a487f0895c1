export { parseJson, readJson, readText } from "./lenient.ts";
export { isJsonObject } from "./object.ts";
export { pointerPath } from "./pointer.ts";
export { shownValue } from "./shown.ts";
export { allowedTypes, alternatives, fitsType, propertySchema, requiredOf, resolved } from "./schema.ts";
export type { TypeName } from "./schema.ts";

export { parseJson, readJson } from "./lenient.ts";
export { isJsonObject } from "./object.ts";
export { allowedTypes, alternatives, fitsType, propertySchema, requiredOf, resolved } from "./schema.ts";
export type { TypeName } from "./schema.ts";

export { fitArguments } from "./fit.ts";
export { simplifiedSchema } from "./simplify.ts";

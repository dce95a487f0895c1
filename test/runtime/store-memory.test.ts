import { createMemoryStore } from "../../src/runtime/store/memory.ts";
import { storeConformance } from "./store-conformance.ts";

storeConformance("memory", { open: () => Promise.resolve(createMemoryStore()) });

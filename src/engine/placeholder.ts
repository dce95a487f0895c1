/** Readable placeholder text: the same seed gives the same sentences. */
import type { Random } from "../base/random.ts";

const SUBJECTS = [
  "The river", "A quiet harbour", "The night train", "An old bridge", "The weather station", "A small library",
  "The lighthouse", "A mountain path", "The market square", "An early ferry", "The observatory", "A garden wall",
] as const; // prettier-ignore

const VERBS = [
  "keeps", "carries", "remembers", "gathers", "measures", "follows", "crosses", "returns", "holds", "connects",
] as const; // prettier-ignore

const OBJECTS = [
  "the morning light", "a list of names", "the slow current", "letters from the coast", "three short notes",
  "the sound of bells", "a map of the valley", "the first snow", "an even pace", "the last passengers",
] as const; // prettier-ignore

const ENDS = [
  "before noon", "without haste", "along the shore", "in every season", "as it always has", "for those who wait",
  "under a clear sky", "until the lamps are lit", "at low water", "between two towns",
] as const; // prettier-ignore

const WORDS = [
  "river", "harbour", "timetable", "bridge", "rainfall", "archive", "lantern", "summit", "market", "ferry", "orchard",
  "station", "delta", "signal", "valley", "ledger", "north", "spring", "stone", "current",
] as const; // prettier-ignore

/** Sentences of about `characters`, ending with a full stop. */
export function placeholderText(random: Random, characters: number): string {
  const sentences: string[] = [];
  let length = 0;
  while (length < characters) {
    const sentence = `${pick(random, SUBJECTS)} ${pick(random, VERBS)} ${pick(random, OBJECTS)} ${pick(random, ENDS)}.`;
    sentences.push(sentence);
    length += sentence.length + 1;
  }
  const text = sentences.join(" ");
  if (text.length <= characters) return text;
  const cut = text.lastIndexOf(" ", Math.max(1, characters - 1));
  return `${text.slice(0, cut <= 0 ? characters - 1 : cut).replace(/[.,]$/, "")}.`;
}

/** Words of about `characters` in all, for a string argument. */
export function placeholderWords(random: Random, characters: number): string {
  let text: string = pick(random, WORDS);
  while (text.length < characters) text += ` ${pick(random, WORDS)}`;
  return text;
}

function pick<Item extends string>(random: Random, items: readonly Item[]): Item {
  const item = items[random.integer(0, items.length - 1)] ?? items[0];
  if (item === undefined) throw new RangeError("nothing to pick from");
  return item;
}

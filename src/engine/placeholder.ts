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

/** Goes on with a sentence where too few characters are left for another one. */
const CONTINUATION = ", and so it goes on";

/** Sentences of at most `characters`, nearly as many, ending with a full stop. */
export function placeholderText(random: Random, characters: number): string {
  let text = "";
  for (;;) {
    const sentence = `${pick(random, SUBJECTS)} ${pick(random, VERBS)} ${pick(random, OBJECTS)} ${pick(random, ENDS)}`;
    const left = characters - text.length - 1;
    if (text !== "" && left < CONTINUATION.length) return `${text.slice(0, -2)}${cutAtWord(CONTINUATION, left + 2)}.`;
    if (sentence.length >= left) return `${text}${cutAtWord(sentence, left)}.`;
    text += `${sentence}. `;
  }
}

/** The longest start of `text` of at most `characters` that ends with a whole word; of one word at least its start. */
function cutAtWord(text: string, characters: number): string {
  if (text.length <= characters) return text;
  if (text[characters] === " ") return text.slice(0, Math.max(0, characters));
  const cut = text.lastIndexOf(" ", characters);
  return text.slice(0, cut > 0 ? cut : Math.max(0, characters)).replace(/,$/, "");
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

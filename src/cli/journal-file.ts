/** Name of the journal inside the state directory. */
export const JOURNAL_FILE = "runs.db";

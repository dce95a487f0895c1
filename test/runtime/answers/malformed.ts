/**
 * Answers as public reports show them, each with what it means. The numbers are those of the reports' list; the texts are
 * our own.
 */
export type Answer = {
  readonly name: string;
  /** Where it was reported. */
  readonly source: string;
  readonly text?: string;
  /** As the engine's parser gives them. */
  readonly parsed?: readonly { readonly id?: string; readonly name: string; readonly arguments?: string }[];
  readonly finish?: string;
  readonly means: {
    /** Calls that are made, in order. */
    readonly calls?: readonly { readonly name: string; readonly args: object }[];
    /** What the model is told instead. */
    readonly refused?: RegExp;
    /** What is left as text; empty when it is not said. */
    readonly text?: string;
    readonly ids?: readonly string[];
    readonly leftAsText?: boolean;
  };
};

const paris = { name: "get_weather", args: { city: "Paris" } };
const time = { name: "get_time", args: { zone: "CET" } };
const PARIS_JSON = `{"name": "get_weather", "arguments": {"city": "Paris"}}`;

export const MALFORMED: readonly Answer[] = [
  {
    name: "1: JSON in a fence, with `parameters`",
    source: "ollama #13519",
    text: '```json\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n```',
    means: { calls: [paris] },
  },
  {
    name: "2: numbers as strings",
    source: "ollama #7860",
    parsed: [{ name: "add", arguments: '{"a": "3", "b": "1"}' }],
    means: { calls: [{ name: "add", args: { a: 3, b: 1 } }] },
  },
  {
    name: "3: Python's form behind the tag",
    source: "llama-models #266",
    text: '<|python_tag|>get_weather(city="Paris")',
    means: { calls: [paris] },
  },
  {
    name: "4: a list in Python's form",
    source: "llama-models #169, ollama #7824",
    text: "[get_weather(city='Paris', days=2), get_time(zone='CET')]",
    means: { calls: [{ name: "get_weather", args: { city: "Paris", days: 2 } }, time] },
  },
  {
    name: "5: the schema instead of arguments",
    source: "the reference system, Llama 3.2 1B",
    parsed: [{ name: "get_weather", arguments: '{"type": "object", "properties": {"city": {"type": "string"}}}' }],
    means: { refused: /^Error: the arguments of 'get_weather' do not fit: .*schema.*Expected: \{"city": string/ },
  },
  {
    name: "5: for each argument its schema",
    source: "the reference system, Llama 3.2 1B",
    parsed: [{ name: "get_weather", arguments: '{"city": {"type": "string", "description": "a city"}}' }],
    means: { refused: /schema/ },
  },
  {
    name: "6: Qwen3-Coder's form without the opening tag",
    source: "Rapid-MLX #448",
    text: "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    means: { calls: [paris] },
  },
  {
    name: "7: the second call leaks into the text",
    source: "vllm-mlx #55",
    text: '\n<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>',
    parsed: [{ id: "a", name: "get_weather", arguments: '{"city": "Paris"}' }],
    means: { calls: [paris, time] },
  },
  {
    name: "8: a brace in a string that is never closed",
    source: "vllm #21544",
    text: '<tool_call>\n{"name": "shell", "arguments": {"command": "mkdir -p test/{test1,test2"}}\n</tool_call>',
    means: { calls: [{ name: "shell", args: { command: "mkdir -p test/{test1,test2" } }] },
  },
  {
    name: "9: no `arguments`",
    source: "vllm #21301",
    text: '<tool_call>\n{"name": "get_time"}\n</tool_call>',
    means: { calls: [{ name: "get_time", args: {} }] },
  },
  {
    name: "9: no arguments from the engine's parser",
    source: "vllm #21301",
    parsed: [{ id: "a", name: "get_time" }],
    means: { calls: [{ name: "get_time", args: {} }] },
  },
  {
    name: "10: a call behind one without arguments",
    source: "vllm #47901",
    text:
      "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n" +
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    means: { calls: [{ name: "get_time", args: {} }, paris] },
  },
  {
    name: "11: arguments that were cut off",
    source: "vllm #55495",
    parsed: [{ id: "a", name: "get_weather", arguments: '{"city": "Par' }],
    finish: "length",
    means: { refused: /'get_weather' was not called: the call was cut off at the token limit/ },
  },
  {
    name: "11: arguments with a leaked tag",
    source: "vllm #55495",
    parsed: [{ id: "a", name: "get_weather", arguments: '{"city": "Paris"}</parameter' }],
    means: { refused: /'get_weather' was not called: the arguments must be one JSON object/ },
  },
  {
    name: "12: Mistral's list",
    source: "mlx-lm #1374",
    text: `[TOOL_CALLS] [${PARIS_JSON}]`,
    means: { calls: [paris] },
  },
  {
    name: "12: Mistral's name and arguments",
    source: "mlx-lm #1374",
    text: '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    means: { calls: [paris] },
  },
  {
    name: "13: a second call and prose behind it",
    source: "mlx-lm #1448",
    text: '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{"zone": "CET"}\nI am asking both.',
    means: { calls: [paris, time], text: "I am asking both." },
  },
  {
    name: "14: a marker before bad JSON",
    source: "frontend-crates #60",
    text: '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": Paris}}]',
    means: { text: '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": Paris}}]', leftAsText: true },
  },
  {
    name: "15: no id, where Mistral's template wants nine letters",
    source: "vllm #9019, langchain #24668",
    text: `[TOOL_CALLS] [${PARIS_JSON}, {"name": "get_time", "arguments": {"zone": "CET"}}]`,
    means: { calls: [paris, time], ids: ["c00001000", "c00001001"] },
  },
  {
    name: "16: DSML without its first tag",
    source: "vllm #48931",
    text:
      '<｜DSML｜invoke name="get_weather"><｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>' +
      "</｜DSML｜invoke></｜DSML｜tool_calls>",
    means: { calls: [paris] },
  },
  {
    name: "16: DSML's section misspelt",
    source: "vllm #51914",
    text:
      '<｜DSML｜toolcalls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris' +
      "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜toolcalls>",
    means: { calls: [paris] },
  },
  {
    name: "17: all arguments inside `arguments`",
    source: "sglang #38924",
    parsed: [{ id: "a", name: "get_weather", arguments: '{"arguments": {"city": "Paris"}}' }],
    means: { calls: [paris] },
  },
  {
    name: "17: all arguments inside `input`, as a text",
    source: "sglang #38924",
    parsed: [{ id: "a", name: "get_weather", arguments: '{"input": "{\\"city\\": \\"Paris\\"}"}' }],
    means: { calls: [paris] },
  },
  {
    name: "18: DSML as content of an answer that ends with stop",
    source: "sglang #40236",
    text:
      'I look it up.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n' +
      '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n' +
      '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    finish: "stop",
    means: { calls: [{ name: "get_weather", args: { city: "Paris", days: 2 } }], text: "I look it up." },
  },
  {
    name: "19: prose about DSML",
    source: "vllm #48931, its comments",
    text: 'Write `<｜DSML｜invoke name="get_weather">` before the arguments, and close it.',
    means: { text: 'Write `<｜DSML｜invoke name="get_weather">` before the arguments, and close it.' },
  },
  {
    name: "20: a channel in the name",
    source: "vllm #35906",
    parsed: [{ id: "a", name: "get_weather<|channel|>commentary", arguments: '{"city": "Paris"}' }],
    means: { calls: [paris] },
  },
  {
    name: "20: the namespace in the name",
    source: "vllm #35906",
    parsed: [{ id: "a", name: "functions.get_weather", arguments: '{"city": "Paris"}' }],
    means: { calls: [paris] },
  },
  {
    name: "21: Harmony without its markers",
    source: "Rapid-MLX #480",
    text: 'commentary to=functions.get_weather json{"city": "Paris"}',
    means: { calls: [paris] },
  },
  {
    name: "22: Harmony with the recipient in the role",
    source: "llama.cpp #15181",
    text: '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
    means: { calls: [paris] },
  },
  {
    name: "23: the closing tag inside a string",
    source: "ollama #18659",
    text: '<tool_call>\n{"name": "shell", "arguments": {"command": "echo \'</tool_call>\'"}}\n</tool_call>',
    means: { calls: [{ name: "shell", args: { command: "echo '</tool_call>'" } }] },
  },
  {
    name: "24: a JSON answer that is no call",
    source: "vllm #58824",
    text: '{"name": "Paris", "parameters": {"population": 2100000}}',
    means: { text: '{"name": "Paris", "parameters": {"population": 2100000}}' },
  },
  {
    name: "24: a JSON answer that has a tool's name, and other arguments",
    source: "vllm #58824",
    text: '{"name": "add", "parameters": {"left": 1}}',
    means: { text: '{"name": "add", "parameters": {"left": 1}}' },
  },
  {
    name: "24: a call in one piece",
    source: "vllm #48294",
    text: '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    means: { calls: [paris] },
  },
  {
    name: "25: raw line breaks and tabs in a string",
    source: "hermes-agent #15356, goose #2893, litellm #28982",
    parsed: [{ id: "a", name: "write_file", arguments: '{"path": "a.py", "text": "if x:\n\treturn\n"}' }],
    means: { calls: [{ name: "write_file", args: { path: "a.py", text: "if x:\n\treturn\n" } }] },
  },
  {
    name: "26: line breaks escaped twice stay as they are",
    source: "openclaw #110823",
    parsed: [{ id: "a", name: "write_file", arguments: '{"path": "a.py", "text": "a\\\\nb"}' }],
    means: { calls: [{ name: "write_file", args: { path: "a.py", text: "a\\nb" } }] },
  },
  {
    name: "27: a Windows path",
    source: "openclaw #88940",
    parsed: [{ id: "a", name: "write_file", arguments: '{"path": "C:\\temp\\new\\file.txt", "text": "a\\nb"}' }],
    means: { calls: [{ name: "write_file", args: { path: "C:\\temp\\new\\file.txt", text: "a\nb" } }] },
  },
  {
    name: "28: an escape that is none",
    source: "opencode #15049",
    parsed: [{ id: "a", name: "write_file", arguments: '{"path": "a\\user", "text": "50 \\% of \\u12"}' }],
    means: { calls: [{ name: "write_file", args: { path: "a\\user", text: "50 \\% of \\u12" } }] },
  },
];

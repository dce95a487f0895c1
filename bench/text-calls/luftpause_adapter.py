"""luftpause's recovery of written calls as one more engine of CanIToolCall.

It gets the text alone: not which family the model is of, and not what the prompt ended with. Engines are told both.
Recovery works on whole answers, so a stream and its parts are put together first, as luftpause does.
"""

import json
import os
import subprocess
from pathlib import Path

from canitoolcall.adapters.base import Adapter, Support
from canitoolcall.results import ParsedToolCall, ParseResult

HERE = Path(__file__).resolve().parent
NODE = os.environ.get("LUFTPAUSE_NODE", "node")


class LuftpauseAdapter(Adapter):
    name = "luftpause"
    pinned_version = "0.1.0"

    def __init__(self):
        self.process = subprocess.Popen(
            [NODE, str(HERE / "serve.ts")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def version(self):
        return self.pinned_version

    def supports(self, family, model):
        return Support(True)

    def parser_config(self, raw):
        return {"told": "the text and the tools"}

    def units(self, raw):
        # No tokenizer can be had offline; characters are finer than tokens.
        return [ord(letter) for letter in raw.text]

    def parse(self, raw, tools):
        return self.recover(raw.text, tools)

    def parse_stream(self, raw, chunks, tools):
        return self.recover("".join("".join(map(chr, chunk)) for chunk in chunks), tools)

    def recover(self, text, tools):
        self.process.stdin.write(json.dumps({"text": text, "tools": list(tools)}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return ParseResult(
            content=answer["content"] or None,
            reasoning_content=answer["reasoning"] or None,
            tool_calls=tuple(
                ParsedToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False))
                for call in answer["calls"]
            ),
        )

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)

"""The official MCP SDK for Python as a client, driven line by line: a command in, its answer out, both JSON."""

import asyncio
import json
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

url, token, mode, has_person = sys.argv[1:5]
calls = {}
forms = {}


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def ask_person(_context, params):
    number = len(forms)
    forms[number] = asyncio.get_running_loop().create_future()
    say({"form": number, "message": params.message})
    answer = await forms[number]
    return ElicitResult(action=answer["action"], content=answer.get("content"))


async def call(client, command):
    number = command["id"]

    async def progress(done, _total, message):
        say({"id": number, "progress": done, "message": message})

    try:
        if command["op"] == "list":
            say({"id": number, "tools": [tool.name for tool in (await client.list_tools()).tools]})
            return
        result = await client.call_tool(
            command["name"], command["args"], progress_callback=progress if command["progress"] else None
        )
        say(
            {
                "id": number,
                "structuredContent": result.structured_content,
                "content": [part.model_dump(mode="json") for part in result.content],
                "isError": result.is_error or False,
            }
        )
    except asyncio.CancelledError:
        say({"id": number, "error": "cancelled"})
        raise
    except Exception as error:  # noqa: BLE001
        say({"id": number, "error": repr(error)})


async def main():
    http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=httpx2.Timeout(30, read=300))
    options = {"mode": mode, "read_timeout_seconds": 20}
    if has_person == "yes":
        options["elicitation_callback"] = ask_person
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Client(streamable_http_client(url, http_client=http), **options) as client:
        say({"ready": client.protocol_version})
        while line := await lines.readline():
            command = json.loads(line)
            if command["op"] == "close":
                break
            if command["op"] == "cancel":
                calls[command["id"]].cancel()
            elif command["op"] == "form":
                forms[command["form"]].set_result(command["answer"])
            else:
                calls[command["id"]] = asyncio.create_task(call(client, command))
        for running in calls.values():
            running.cancel()
    await http.aclose()


asyncio.run(main())

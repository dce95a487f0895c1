"""The official OpenAI SDK for Python as a client of luftpause: one case, told by argument, its findings as JSON."""

import json
import sys
import threading

import openai

case, base_url, api_key = sys.argv[1:4]
MODEL = "sim-8b"
MESSAGES = [{"role": "user", "content": "Why do agents wait?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    }
]


def client(retries=0, **options):
    return openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=retries, **options)


def text_of(stream):
    text, usages = "", 0
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usages += chunk.usage is not None
    return {"text": text, "usages": usages}


def failure(call):
    try:
        call()
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "code": error.code, "param": error.param}
    except openai.APIError as error:
        return {"class": type(error).__name__, "code": error.code, "type": error.type}
    except Exception as error:  # A broken connection shows as an error of the transport.
        return {"class": type(error).__name__}
    return {"class": None}


def create(**options):
    return client().chat.completions.create(model=MODEL, messages=MESSAGES, **options)


def answers():
    whole = create()
    tools = create(tools=TOOLS, tool_choice="required")
    return {
        "whole": whole.choices[0].message.content,
        "stream": text_of(create(stream=True)),
        "with_usage": text_of(create(stream=True, stream_options={"include_usage": True})),
        "finish": tools.choices[0].finish_reason,
        "tool": tools.choices[0].message.tool_calls[0].function.name,
    }


def errors():
    return {
        "unknown": failure(lambda: client().chat.completions.create(model="other", messages=MESSAGES)),
        "bad_class": failure(lambda: create(extra_headers={"x-luftpause-class": "urgent"})),
    }


def wrong_token():
    return failure(create)


def retry():
    answer = client(retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
    return {"finish": answer.choices[0].finish_reason}


def abort_held():
    first = create(stream=True)
    iterator = iter(first)
    next(iterator)
    impatient = client(timeout=1.0).chat.completions
    # A stream has no early answer before its first sign of life: this client gives up by itself.
    left = failure(lambda: impatient.create(model=MODEL, messages=MESSAGES, stream=True))
    # A whole answer is answered before the time-out that this SDK tells in its headers.
    answered = failure(lambda: impatient.create(model=MODEL, messages=MESSAGES))
    first.close()
    return {"left": left["class"], "answered": answered["code"]}


def abort_stream():
    stream = create(stream=True)
    for number, _ in enumerate(stream):
        if number == 3:
            stream.close()
            break
    return {"closed": True}


def held():
    results = []
    threads = [threading.Thread(target=lambda: results.append(text_of(create(stream=True)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"same": results[0] == results[1], "answers": len(results)}


def engine_lost():
    def read():
        for number, _ in enumerate(create(stream=True)):
            if number == 3:
                print("READING", flush=True)

    return failure(read)


print(json.dumps(globals()[case]()))

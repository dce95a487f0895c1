"""Starts llama.cpp's own HTTP server (`llama-server`, compiled into the xllamacpp wheel) on a free loopback port.

Prints one JSON line `{"url", "build"}` on standard output once the model is loaded, then serves until it is ended by a
signal, or until its standard input closes: an engine never outlives the test run that started it, whatever ended that.

Not a wrapper: every byte on the wire is written by llama.cpp. Python only fills in the parameters that the command
line of `llama-server` would.
"""

import argparse
import json
import os
import sys

import xllamacpp


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--template", required=True, help="chat template; the small model's own knows no tools")
    parser.add_argument("--alias", required=True, help="name of the model on the wire")
    parser.add_argument("--slots", type=int, required=True, help="turns computed at once")
    parser.add_argument("--context", type=int, required=True, help="context of one slot, tokens")
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.model_alias = {arguments.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.context * arguments.slots
    # One KV buffer per slot: how much of a prompt is cached then depends on that slot's history alone.
    params.kv_unified = False
    # Without the host-memory prompt cache a prefix is found in a slot or not at all.
    params.cache_ram_mib = 0
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    # Do not spin between steps: the machine is shared with the proxy and the clients under test.
    params.cpuparams.poll = 0
    params.cpuparams_batch.poll = 0
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.use_jinja = True
    with open(arguments.template, encoding="utf-8") as template:
        params.chat_template = template.read()
    # Where a request names no temperature, as sub-agents do not: no test depends on a mood.
    params.sampling.temp = 0.0
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address, "build": xllamacpp.BUILD_INFO}), flush=True)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # The server's destructor waits for open requests; the test run that owned them is gone.
    os._exit(0)


main()

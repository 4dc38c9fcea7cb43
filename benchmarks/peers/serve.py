"""Protocol of all baselines: one JSON object per line in, one per line out, until {"op": "quit"} or end of input."""

import json
import sys
import time


def requests():
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "quit":
            return
        yield request


def serve(answer):
    """Answers each request. Errors of the library are reported as {"error": text}."""
    for request in requests():
        try:
            reply = answer(request)
        except (RuntimeError, ValueError) as error:
            # CUDA errors persist until the process exits. The caller continues with another one.
            if "CUDA error" in str(error):
                raise
            text = str(error).strip().split("\n")[0]
            reply = {"error": f"{type(error).__name__}: {text}"}
        print(json.dumps(reply), flush=True)


def serve_runs(prepare, cold=False):
    """Serves two requests that measure host time. `prepare` returns the function to run.

    {"op": "prepare", …}               prepares a run, and runs it once
    {"op": "sample", "count": n}       seconds of n runs; with `cold` also of the run before them, "first"
    """
    run = None

    def answer(request):
        nonlocal run
        if request["op"] == "prepare":
            run = prepare(request)
            run()
            return {}
        first = {"first": seconds_of(run)} if cold else {}
        return {**first, "seconds": [seconds_of(run) for _ in range(request["count"])]}

    serve(answer)


def seconds_of(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin

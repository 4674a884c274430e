"""Runs the parts of a script, each in a process of its own with a time limit, and writes what they
measured as JSON after each of them.

    SCRIPT.sh FOLDER [SCALE]    runs all parts; the result is FOLDER/SCRIPT.json. SCALE shortens
                                what takes time: 0.1 for a tenth (default 1)
    --call FUNCTION ...         instead: one function, for the script itself; each line on stdout
                                is an object with fields of the result
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

# Seconds of a whole script: its command has nine minutes.
MOST = 8 * 60 + 30
# A part that would have less time is not started.
LEAST = 3
# Where a driver may be that the loader does not know.
PLACES = [
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
]
FIND = """import ctypes, json
found = {}
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    ctypes.CDLL(name)
for line in open("/proc/self/maps"):
    path = line.split(maxsplit=5)[5:]
    for name in ("libcuda", "libnvidia-ml"):
        if path and "/" + name + ".so" in path[0]:
            found[name] = path[0].strip()
print(json.dumps(found))
"""


class Skipped(Exception):
    """A part cannot be measured on this machine; the text is the reason."""


def scale():
    """The factor for durations and repetitions."""
    return float(os.environ.get("ALIQUOT_PARTS_SCALE", "1"))


def scaled(number, least):
    return max(least, int(number * scale()))


def report(**fields):
    """Adds fields to the result of this part; they stay if the part fails later."""
    print(json.dumps(fields), flush=True)


def wait_for_end_of_input():
    sys.stdin.read()


def ended_input():
    """An event that is set when standard input ends."""
    ended = threading.Event()

    def wait():
        wait_for_end_of_input()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def prepended(variable, value):
    """`value` before what the variable of the environment has."""
    known = os.environ.get(variable, "")
    return f"{value}:{known}" if known else value


def command(function, *arguments, script=None):
    script = script or sys.argv[0]
    return [sys.executable, "-B", script, "--call", function, *map(str, arguments)]


class Worker:
    """A function of a script in a process of its own, which ends when its input does."""

    def __init__(self, function, *arguments, script=None, environment=None):
        self.name = function
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command(function, *arguments, script=script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            text=True,
        )
        self.result = {}

    def wait_for(self, field):
        """Reads lines until one has the field; returns its value."""
        for line in self.process.stdout:
            self._merge(line)
            if field in self.result:
                return self.result[field]
        self._fail(f"it ended without {field}")

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, limit=60):
        """Ends its input; returns its result."""
        stop = threading.Timer(limit, self.process.kill)
        stop.start()
        try:
            self.process.stdin.close()
            for line in self.process.stdout:
                self._merge(line)
            if self.process.wait():
                self._fail(f"it ended with {self.process.returncode}")
        finally:
            stop.cancel()
        return self.result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _merge(self, line):
        if line.startswith("{"):
            self.result.update(json.loads(line))

    def _fail(self, what):
        self.errors.seek(0)
        raise RuntimeError(f"{self.name}: {what}: {self.errors.read()[-1000:]}")


def call(function, *arguments, script=None, environment=None, limit=60):
    """The result of a function in a process of its own."""
    with Worker(function, *arguments, script=script, environment=environment) as worker:
        return worker.end(limit)


def find_driver():
    """The files of the driver, as a process that has loaded them shows them. A driver that the
    loader does not know is searched for, and its folder is put before LD_LIBRARY_PATH."""
    for place in ["", *PLACES]:
        environment = dict(os.environ)
        if place:
            environment["LD_LIBRARY_PATH"] = prepended("LD_LIBRARY_PATH", place)
        answer = subprocess.run(
            [sys.executable, "-c", FIND], capture_output=True, text=True, timeout=60,
            env=environment,
        )
        if not answer.returncode:
            os.environ.update(environment)
            return json.loads(answer.stdout)
    raise RuntimeError(f"no driver, also not in {PLACES}: {answer.stderr.splitlines()[-1]}")


def _write(path, result):
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def _run_part(name, limit):
    """One part in a process group of its own, which ends with it."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command(name), stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )
        problem = None
        try:
            if process.wait(limit):
                problem = f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        part = {}
        for line in output:
            if line.startswith("{") and line.endswith("\n"):
                part.update(json.loads(line))
        errors.seek(0)
        text = errors.read()[-2000:]
    if problem:
        part["error"] = f"{problem}: {text}"
    part["seconds"] = round(time.monotonic() - started, 1)
    return part


def _run_all(script, parts, folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, script + ".json")
    started = time.monotonic()
    result = {
        "script": script,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scale": scale(),
        "parts": {},
    }
    try:
        found = find_driver()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        result["error"] = str(error)
        _write(path, result)
        print(f"nothing measured: {error}", file=sys.stderr)
        return 2
    result["driver"] = found
    os.environ["ALIQUOT_PARTS_DRIVER"] = json.dumps(found)
    for name, limit in parts.items():
        left = MOST - (time.monotonic() - started)
        if left < LEAST:
            part = {"error": "not started: the script's time is used up"}
        else:
            part = _run_part(name, min(limit, left))
        result["parts"][name] = part
        result["seconds"] = round(time.monotonic() - started, 1)
        _write(path, result)
        state = "error" if "error" in part else "skipped" if "skipped" in part else "measured"
        why = part.get("error") or part.get("skipped") or ""
        print(f"{name}: {state} {why.strip().splitlines()[-1] if why else ''}".strip(), flush=True)
    return int(any("error" in part for part in result["parts"].values()))


def main(script, functions, parts):
    """The program of a script: `parts` are names of its functions with their limits in seconds."""
    words = sys.argv[1:]
    if words[:1] == ["--call"]:
        # A part that is left alone, by a killed parent, must not stay.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        try:
            functions[words[1]](*words[2:])
        except Skipped as why:
            report(skipped=str(why))
        except Exception:
            traceback.print_exc()
            sys.stdout.flush()
            # Threads and libraries of a failed part are not waited for.
            os._exit(1)
        return
    if not 1 <= len(words) <= 2:
        sys.exit(f"usage: {script}.sh FOLDER [SCALE]")
    if len(words) == 2:
        os.environ["ALIQUOT_PARTS_SCALE"] = words[1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(_run_all(script, parts, words[0]))

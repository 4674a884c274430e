"""Runs the parts of a script, each in a process of its own with a time limit. Each fact is printed
as it is found, a line `{"part": NAME, FIELD: VALUE}`; the result is written after each part.

    SCRIPT.sh FOLDER [SCALE [PART...]]
            runs all parts, or those that are named; the result is FOLDER/SCRIPT.json. SCALE
            shortens what takes time: 0.1 for a tenth (default 1)
    --call FUNCTION ...
            instead: one function, for the script itself; each line on stdout is an object with
            fields of the result

Nothing waits without a limit: a driver may hang, and a machine with a GPU is lent for minutes.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

# Seconds of a command, where a script states none.
MOST = 8 * 60 + 30
# A part that would have less time is not started.
LEAST = 3
# Seconds in which a process has to end after SIGKILL. One that a driver holds may never end.
KILLED = 10
# Exit status of a command that ends before its last part, and of the process that says so.
UNFIT = 3
# Characters of a field on stdout; a longer one is only in the file.
SHOWN = 1500
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


class Unfit(Exception):
    """No further part may run on this machine, as where a process that should be limited is not;
    the text says what was seen and what was expected. The command ends at once."""


def scale():
    """The factor for durations and repetitions."""
    return float(os.environ.get("ALIQUOT_PARTS_SCALE", "1"))


def scaled(number, least):
    return max(least, int(number * scale()))


def report(**fields):
    """Adds fields to the result of this part; they stay if the part fails later."""
    print(json.dumps(fields), flush=True)


def prepended(variable, value):
    """`value` before what the variable of the environment has."""
    known = os.environ.get(variable, "")
    return f"{value}:{known}" if known else value


def command(function, *arguments, script=None):
    script = script or sys.argv[0]
    return [sys.executable, "-B", script, "--call", function, *map(str, arguments)]


def show_stack(process):
    """Lets a process that is late write where it is to its stderr, also from within the driver."""
    process.send_signal(signal.SIGUSR1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)


def killed(process, group=False):
    """Kills a process, or the process group that it leads. Words if it does not end, else None."""
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    try:
        process.wait(timeout=KILLED)
    except subprocess.TimeoutExpired:
        return f"process {process.pid} has not ended {KILLED} s after SIGKILL"
    return None


class Lines:
    """The lines of a pipe, each until a deadline."""

    def __init__(self, pipe):
        self.pipe, self.rest = pipe, b""

    def next(self, deadline):
        """The next whole line; None at the end of the pipe."""
        while b"\n" not in self.rest:
            left = max(0, deadline - time.monotonic())
            if not select.select([self.pipe], [], [], left)[0]:
                raise TimeoutError
            found = os.read(self.pipe.fileno(), 1 << 16)
            if not found:
                return None
            self.rest += found
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode(errors="replace")


_INPUT = Lines(sys.stdin)


def next_input(limit=MOST):
    """The next line of standard input with its newline; empty at its end."""
    line = _INPUT.next(time.monotonic() + limit)
    return "" if line is None else line + "\n"


def has_input():
    """Whether `next_input` returns at once."""
    return b"\n" in _INPUT.rest or bool(select.select([sys.stdin], [], [], 0)[0])


def wait_for_end_of_input():
    while next_input():
        pass


def reached(step):
    """Waits until the parent, which measures this step, sends a line; returns it."""
    report(step=step)
    return next_input().strip()


def ended_input():
    """An event that is set when standard input ends."""
    ended = threading.Event()

    def wait():
        wait_for_end_of_input()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def fields_of(line):
    """What a line of a process states; nothing for one that another program printed."""
    try:
        found = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Worker:
    """A function of a script in a process of its own, which ends when its input does."""

    def __init__(
        self, function, *arguments, script=None, environment=None, words=None, descriptors=()
    ):
        """`words` are another program's command line, in place of a function's; it inherits the
        descriptors."""
        self.name = function
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            words or command(function, *arguments, script=script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            pass_fds=descriptors,
        )
        self.lines = Lines(self.process.stdout)
        self.result = {}

    def wait_for(self, field, limit=60):
        """Reads lines until one has the field; returns its value."""
        deadline = time.monotonic() + limit
        while field not in self.result:
            if not self._read(deadline, f"no {field} within {limit} s"):
                self._fail(f"it ended without {field}")
        return self.result[field]

    def next_step(self, limit=60):
        """The next step that it has `reached`; None at its end."""
        deadline = time.monotonic() + limit
        while "step" not in self.result:
            if not self._read(deadline, f"no step within {limit} s"):
                if self.process.wait(timeout=KILLED):
                    self._fail(f"it ended with {self.process.returncode}")
                return None
        return self.result.pop("step")

    def kill(self):
        """SIGKILL, and its end."""
        if words := killed(self.process):
            raise RuntimeError(f"{self.name}: {words}")

    def send(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self, limit=60):
        """Ends its input; returns its result."""
        deadline = time.monotonic() + limit
        late = f"not ended {limit} s after its input"
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        while self._read(deadline, late):
            pass
        try:
            status = self.process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._fail(late)
        if status:
            self._fail(f"it ended with {status}")
        return self.result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()

    def _read(self, deadline, late):
        """Whether there was a line."""
        try:
            line = self.lines.next(deadline)
        except TimeoutError:
            show_stack(self.process)
            self._fail(late)
        if line is not None:
            self.result.update(fields_of(line))
        return line is not None

    def _fail(self, what):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        self.errors.seek(0)
        text = f"{self.name}: {what}: {self.errors.read()[-1000:]}"
        raise (Unfit if self.process.returncode == UNFIT else RuntimeError)(text) from None


def call(function, *arguments, script=None, environment=None, limit=60):
    """The result of a function in a process of its own."""
    with Worker(function, *arguments, script=script, environment=environment) as worker:
        return worker.end(limit)


def needs(library):
    """Skips the part where a library of Python is not installed. Nothing is imported."""
    found = subprocess.run(
        [sys.executable, "-c", f"import importlib.util as u; exit(not u.find_spec('{library}'))"],
        timeout=30,
    )
    if found.returncode:
        raise Skipped(f"{library} is not installed")


def tool(*words, limit, environment=None):
    """What another program printed: exit status and both outputs."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )
        late = None
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            late = f"stopped after {limit} s"
        late = killed(process, group=True) or late
        output.seek(0)
        return {"status": late or process.returncode, "output": output.read()[-3000:]}


def find_driver():
    """The files of the driver, as a process that has loaded them shows them. A driver that the
    loader does not know is searched for, and its folder is put before LD_LIBRARY_PATH."""
    for place in ["", *PLACES]:
        environment = dict(os.environ)
        if place:
            environment["LD_LIBRARY_PATH"] = prepended("LD_LIBRARY_PATH", place)
        answer = subprocess.run(
            [sys.executable, "-c", FIND], capture_output=True, text=True, timeout=30,
            env=environment,
        )
        if not answer.returncode:
            os.environ.update(environment)
            return json.loads(answer.stdout)
    raise RuntimeError(f"no driver, also not in {PLACES}: {answer.stderr.splitlines()[-1]}")


def hold_nvml(path):
    """Opens every GPU in NVML for as long as this process lives: without persistence mode a GPU
    that nobody has open is initialised again at each start. No context. The code of an error."""
    library = ctypes.CDLL(path)
    count, device = ctypes.c_uint(), ctypes.c_void_p()
    code = library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        code = code or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    return code


def _write(path, result):
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def _print(name, fields):
    """A line for each field, at once. The longest are only in the file."""
    for field, value in fields.items():
        text = json.dumps(value)
        if len(text) > SHOWN:
            text = json.dumps(f"{len(text)} characters: see the file")
        print(f'{{"part": "{name}", {json.dumps(field)}: {text}}}', flush=True)


def _run_part(name, limit):
    """One part in a process group of its own, which ends with it: its result and exit status."""
    started = time.monotonic()
    part, problems = {}, []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command(name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,
        )
        try:
            _read_part(name, process, part, started + limit)
            if process.returncode and process.returncode != UNFIT:
                problems.append(f"exit status {process.returncode}")
        except TimeoutError:
            show_stack(process)
            problems.append(f"stopped after {limit:.0f} s")
        finally:
            # Also what the part has left behind.
            if words := killed(process, group=True):
                problems.append(words)
            process.stdout.close()
        if problems:
            errors.seek(0)
            part["error"] = f"{', '.join(problems)}: {errors.read()[-2000:]}"
    part["seconds"] = round(time.monotonic() - started, 1)
    return part, process.returncode


def _read_part(name, process, part, deadline):
    """Prints and merges what a part reports, until it has ended."""
    lines = Lines(process.stdout)
    while True:
        try:
            line = lines.next(min(deadline, time.monotonic() + 0.2))
        except TimeoutError:
            if process.poll() is not None:
                # A process that it left behind still has the pipe.
                return
            if time.monotonic() >= deadline:
                raise
            continue
        if line is None:
            process.wait(timeout=KILLED)
            return
        fields = fields_of(line)
        part.update(fields)
        _print(name, fields)


def _run_all(script, parts, folder, budget):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, script + ".json")
    started = time.monotonic()
    result = {
        "script": script,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scale": scale(),
        "parts": {},
    }

    def end(status, words):
        result["error"] = words
        _write(path, result)
        print(words, file=sys.stderr, flush=True)
        return status

    try:
        found = find_driver()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return end(2, f"nothing measured: {error}")
    result["driver"] = found
    os.environ["ALIQUOT_PARTS_DRIVER"] = json.dumps(found)
    result["nvml_held"] = hold_nvml(found["libnvidia-ml"])
    for name, limit in parts.items():
        left = budget - (time.monotonic() - started)
        status = None
        if left < LEAST:
            part = {"error": f"not started: the command's {budget} s are used up"}
        else:
            part, status = _run_part(name, min(limit, left))
            if left < limit:
                part["cut"] = f"{left:.0f} s were left, of {limit} s"
                _print(name, {"cut": part["cut"]})
        result["parts"][name] = part
        result["seconds"] = round(time.monotonic() - started, 1)
        _write(path, result)
        state = "error" if "error" in part else "skipped" if "skipped" in part else "measured"
        why = (part.get("error") or part.get("skipped") or "").strip().splitlines()
        _print(name, {"state": ": ".join([state, *why[:1], *why[1:][-1:]])[:SHOWN]})
        # Without its first part a script has nothing to measure with.
        if status == UNFIT or name == "prepare" and "error" in part:
            return end(UNFIT, f"ended by the part {name}: {part.get('error', 'no words')}")
    return int(any("error" in part for part in result["parts"].values()))


def main(script, functions, parts, budget=MOST):
    """The program of a script: `parts` are names of its functions with their limits in seconds,
    `budget` is the limit of all together."""
    words = sys.argv[1:]
    # Ends this process also where it hangs in the driver.
    faulthandler.dump_traceback_later(budget + 2 * KILLED, exit=True)
    if words[:1] == ["--call"]:
        faulthandler.register(signal.SIGUSR1)
        # A part that is left alone, by a killed parent, must not stay.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        try:
            functions[words[1]](*words[2:])
        except Skipped as why:
            report(skipped=str(why))
        except Exception as error:
            if isinstance(error, Unfit):
                report(error=str(error))
                print(error, file=sys.stderr)
            else:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            # Threads and libraries of a failed part are not waited for.
            os._exit(UNFIT if isinstance(error, Unfit) else 1)
        return
    if not words or not set(words[2:]) <= set(parts):
        sys.exit(f"usage: {script}.sh FOLDER [SCALE [PART...]]; parts: {', '.join(parts)}")
    if len(words) > 1:
        os.environ["ALIQUOT_PARTS_SCALE"] = words[1]
    if words[2:]:
        # What the other parts need has no other name.
        parts = {name: parts[name] for name in parts if name in ("prepare", *words[2:])}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(_run_all(script, parts, words[0], budget))

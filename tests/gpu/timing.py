"""What the clocks of a GPU report, and how it divides its time. Parts of facts.py."""

import contextlib
import time
from ctypes import Structure, byref, c_size_t, c_ubyte, c_uint, c_uint64

import parts
import probe
import workload
from parts import report, scaled
from probe import MIB, Driver, Nvml

DURATIONS = [2, 5, 10, 30, 100, 300, 1000, 3000, 10000, 50000]
# The same beside other processes, where each takes longer.
FEW = [2, 10, 100, 1000, 10000]
# Bytes between the places where launches write.
SLOT = 32
# Microseconds of the kernels of a busy process.
BUSY = 5000
# Most runs that a process records.
RUNS = 4000


def speed():
    """Iterations of a microsecond, measured in a process that has ended."""
    with workload.start("speed") as worker:
        return worker.end()["rate"]


@contextlib.contextmanager
def busy_processes(count, rate, microseconds=BUSY, pause=0.0, warm=0.2, seconds=1.0):
    """Busy processes that have begun at the same time."""
    with contextlib.ExitStack() as stack:
        words = (microseconds, rate, warm, seconds, pause)
        workers = [stack.enter_context(workload.start("busy", *words)) for _ in range(count)]
        for worker in workers:
            worker.wait_for("ready")
        for worker in workers:
            worker.send("")
        yield workers
        for worker in workers:
            worker.process.stdin.close()
        for worker in workers:
            worker.end()


def clock():
    """Steps of `%globaltimer`, and the multiprocessor's clock by it."""
    driver = Driver()
    nvml = Nvml(driver.uuid())
    for microseconds in (100, 10000, 500000):
        (kernel,) = driver.kernels(probe.timed(probe.steps, microseconds))
        out = driver.zeroed(5)
        driver.launcher(kernel, out)()
        driver("cuCtxSynchronize")
        report(**{f"during_{microseconds}_us": steps_of(driver.numbers(out, 5))})
    report(nvml_clock_mhz=nvml.number("nvmlDeviceGetClockInfo", 1))


def steps_of(numbers):
    """What a kernel of `probe.steps` wrote."""
    if not numbers:
        return probe.ABSENT
    changes, least, most, past, cycles = numbers
    return {
        "changes": changes,
        "least_step_ns": least,
        "most_step_ns": most,
        "mean_step_ns": past / max(changes, 1),
        "clock_mhz": cycles * 1000 / max(past, 1),
    }


def measured(driver, text, microseconds, rate, in_a_row):
    """Events around launches, beside what the kernels read themselves."""
    (kernel,) = driver.kernels(probe.timed(text, microseconds))
    times = max(3, min(scaled(200, 10), scaled(300_000, 1) // microseconds))
    stream, out = driver.stream(), driver.zeroed(times * SLOT // 8)
    iterations = int(rate * microseconds)
    launches = [driver.launcher(kernel, out + SLOT * i, iterations, stream) for i in range(times)]
    events = [(driver.event(), driver.event()) for _ in range(times)]
    launches[0]()
    driver("cuStreamSynchronize", stream)
    for launch, (start, end) in zip(launches, events):
        driver("cuEventRecord", start, stream)
        launch()
        driver("cuEventRecord", end, stream)
        if not in_a_row:
            driver("cuStreamSynchronize", stream)
    driver("cuStreamSynchronize", stream)
    by_events = [driver.elapsed(*pair) for pair in events]
    found = compared(by_events, driver.numbers(out, times * SLOT // 8))
    for pair in events:
        for event in pair:
            driver("cuEventDestroy_v2", event)
    driver("cuStreamDestroy_v2", stream)
    driver.free(out)
    return found


def compared(by_events, numbers):
    """Microseconds by events, and by the first and last readings that each launch wrote."""
    found = {"event_us": probe.summary(by_events)}
    if not numbers:
        return {**found, "timer_us": probe.ABSENT}
    starts, ends = numbers[:: SLOT // 8], numbers[1 :: SLOT // 8]
    by_timer = [(end - start) / 1000 for start, end in zip(starts, ends)]
    return {
        **found,
        "timer_us": probe.summary(by_timer),
        "event_more_us": probe.summary([e - t for e, t in zip(by_events, by_timer)]),
        "between_launches_us": probe.summary([(b - a) / 1000 for a, b in zip(ends, starts[1:])]),
    }


def events(beside):
    rate = speed()
    driver = Driver()
    with busy_processes(beside, rate):
        for text in (probe.spin, probe.work):
            for microseconds in FEW if beside else DURATIONS:
                found = {
                    name: measured(driver, text, microseconds, rate, in_a_row)
                    for name, in_a_row in (("idle_stream", False), ("in_a_row", True))
                }
                report(**{f"{text.__name__}_of_{microseconds}_us": found})


def events_alone():
    events(0)


def events_beside_1():
    events(1)


def events_beside_2():
    events(2)


def events_beside_4():
    events(4)


def marks():
    """How long after its record an event on an idle stream is ready, and how long after a kernel's
    end, by the host's clock."""
    driver = Driver()
    stream, event = driver.stream(), driver.event()
    (kernel,) = driver.kernels(probe.timed(probe.spin, 100))
    launch = driver.launcher(kernel, stream=stream)
    query = driver.library.cuEventQuery

    def until_ready(before):
        taken = []
        for _ in range(scaled(500, 20)):
            driver("cuStreamSynchronize", stream)
            before()
            driver("cuEventRecord", event, stream)
            start = time.perf_counter_ns()
            asked = 1
            while query(event) == probe.NOT_READY:
                asked += 1
            taken.append((asked, (time.perf_counter_ns() - start) / 1000))
        return {
            "queries": probe.summary([asked for asked, _ in taken]),
            "us": probe.summary([us for _, us in taken]),
        }

    report(idle_stream=until_ready(lambda: None), after_100_us=until_ready(launch))
    pairs = []
    start, end = driver.event(), driver.event()
    for _ in range(scaled(500, 20)):
        for one in (start, end):
            driver("cuEventRecord", one, stream)
        driver("cuStreamSynchronize", stream)
        pairs.append(driver.elapsed(start, end))
    report(between_two_records_us=probe.summary(pairs))


def run_once(microseconds):
    """Records when its kernel ran."""
    driver = Driver()
    (kernel,) = driver.kernels(probe.timed(probe.runs, int(microseconds)))
    out = driver.zeroed(2 * RUNS + 8)
    launch = driver.launcher(kernel, out, RUNS)
    report(ready=True)
    parts.next_input()
    launch()
    driver("cuCtxSynchronize")
    report(runs=runs_of(driver.numbers(out, 2 * RUNS + 8)))


def runs_of(numbers):
    """First and last reading of each run that a kernel of `probe.runs` wrote."""
    pairs = numbers[1 : 1 + 2 * numbers[0]] if numbers else []
    return list(zip(pairs[::2], pairs[1::2]))


def slices(processes):
    """Slices of some processes that run at the same time, and what lies between them."""
    microseconds = scaled(500_000, 20_000)
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(parts.Worker("run_once", microseconds)) for _ in range(processes)
        ]
        for worker in workers:
            worker.wait_for("ready")
        for worker in workers:
            worker.send("")
        found = [worker.end()["runs"] for worker in workers]
    report(**slices_of(found))


def slices_of(found):
    """Slices and switches by the runs of each process, while all of them had work."""
    if not all(found):
        return {"slices": probe.ABSENT}
    since, until = max(runs[0][0] for runs in found), min(runs[-1][1] for runs in found)
    merged = sorted(
        (first, last, who)
        for who, runs in enumerate(found)
        for first, last in runs
        if since <= first and last <= until
    )
    pairs = [(a, b) for a, b in zip(merged, merged[1:]) if a[2] != b[2]]
    ran = [sum(b - a for a, b, of in merged if of == who) for who in range(len(found))]
    return {
        "together_us": (until - since) / 1000,
        "slice_us": probe.summary([(last - first) / 1000 for first, last, _ in merged]),
        "switch_us": probe.summary([(b[0] - a[1]) / 1000 for a, b in pairs]),
        "ran_percent": [100 * one / (until - since) for one in ran] if until > since else None,
        "first_us": [[(a - since) / 1000, (b - since) / 1000, who] for a, b, who in merged[:200]],
    }


def streams():
    """Kernels of 1 ms and of 10 us in several streams of one process: the time of all, and what
    events around each stream's kernels say."""
    driver = Driver()
    rate, many = speed(), scaled(20, 4)
    for microseconds in (1000, 10):
        (kernel,) = driver.kernels(probe.timed(probe.work, microseconds))
        for count in (1, 2, 4, 8):
            all_streams = [driver.stream() for _ in range(count)]
            iterations = int(rate * microseconds)
            runs = [driver.launcher(kernel, 0, iterations, stream) for stream in all_streams]
            events = [(driver.event(), driver.event()) for _ in all_streams]
            for run, stream in zip(runs, all_streams):
                run()
                driver("cuStreamSynchronize", stream)
            began = time.perf_counter()
            for stream, (start, _) in zip(all_streams, events):
                driver("cuEventRecord", start, stream)
            for _ in range(many):
                for run in runs:
                    run()
            for stream, (_, end) in zip(all_streams, events):
                driver("cuEventRecord", end, stream)
            driver("cuCtxSynchronize")
            took = (time.perf_counter() - began) * 1e6
            report(**{f"{count}_of_{microseconds}_us": {
                "kernels_in_each": many,
                "all_us": round(took, 1),
                "all_of_one_us": round(took / count / many, 2),
                "by_events_us": [round(driver.elapsed(*pair) / many, 2) for pair in events],
            }})


def slices_of_2():
    slices(2)


def slices_of_4():
    slices(4)


def throughput():
    """What processes get of the GPU, by the time that their kernels take alone."""
    rate, kernels = speed(), [100, 1000, 10000]
    with workload.start("own_times", rate, *kernels) as worker:
        own = worker.end()["own_us"]
    report(own_us=own)
    for microseconds in kernels:
        for processes in (1, 2, 4):
            seconds = 1.5 * parts.scale()
            with busy_processes(processes, rate, microseconds, seconds=seconds) as workers:
                for worker in workers:
                    worker.wait_for("runs")
            got = [
                worker.result["runs"] * own[str(microseconds)] / 1e4 / worker.result["seconds"]
                for worker in workers
            ]
            report(**{f"{processes}_of_{microseconds}_us": {"percent": got, "sum": sum(got)}})


def copies():
    """Fills and copies within the device, by events."""
    driver = Driver()
    stream = driver.stream()
    times = scaled(10, 1)
    for mib in (size for size in (1, 16, 64, 256, 1024) if size <= scaled(1024, 1)):
        size = c_size_t(mib * MIB)
        one, other = (c_uint64(driver.allocate(size.value)) for _ in range(2))
        fill = lambda: driver("cuMemsetD8Async", one, c_ubyte(1), size, stream)
        copy = lambda: driver("cuMemcpyDtoDAsync_v2", other, one, size, stream)
        fill()
        copy()
        report(**{f"{mib}_mib": {
            "fill_us": driver.timed(fill, stream, times),
            "copy_us": driver.timed(copy, stream, times),
        }})
        driver.free(one.value)
        driver.free(other.value)


class Rates(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


def polled(nvml, seconds):
    """Both calls for the utilisation of processes, twice a second, and that of the GPU."""
    calls = {"legacy": nvml.legacy_utilization, "new": nvml.utilization}
    since, answers = dict.fromkeys(calls, 0), []
    rates = Rates()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = {}
        for name, call in calls.items():
            code, samples = call(since[name])
            since[name] = max([since[name], *(one["at_us"] for one in samples)])
            answer[name] = {"code": code, "samples": samples}
        code = nvml.ask("nvmlDeviceGetUtilizationRates", nvml.device, byref(rates))
        answer["gpu"] = rates.gpu if code == 0 else f"error {code}"
        answer["now_us"] = time.time_ns() // 1000
        answers.append(answer)
        time.sleep(0.5)
    return answers


def utilisation():
    nvml = Nvml(Driver(context=False).uuid())
    rate = speed()
    for name, processes, pause in [
        ("idle", 0, 0.0),
        ("one_busy", 1, 0.0),
        ("one_for_a_third", 1, 0.010),
        ("two_busy", 2, 0.0),
    ]:
        with busy_processes(processes, rate, BUSY, pause) as workers:
            # Until the driver has samples of them.
            time.sleep(max(0.7, parts.scale()))
            answers = polled(nvml, 4 * parts.scale())
            pids = [worker.result["pid"] for worker in workers]
        by_call = {call: order_of(answers, call, pids) for call in ("legacy", "new")}
        report(**{name: {"pids": pids, **by_call}})
        report(**{f"{name}_answers": answers})


def order_of(answers, call, pids):
    """How the samples of the answers are ordered and stamped: whether all processes have the time
    of their answer's newest, how far their times differ, how old the newest is, and how many
    samples came twice."""
    lists = [one[call]["samples"] for one in answers]
    filled = [(one, samples) for one, samples in zip(answers, lists) if samples]
    times = [[sample["at_us"] for sample in samples] for _, samples in filled]
    keys = [(sample["pid"], sample["at_us"]) for _, samples in filled for sample in samples]
    of_pid = [sorted({at for pid, at in keys if pid == one}) for one in pids]
    own = [sample for _, samples in filled for sample in samples if sample["pid"] in pids]
    return {
        "codes": sorted({one[call]["code"] for one in answers}),
        "answers_with_samples": len(filled),
        "samples_of_each": probe.summary([len(one) for one in times]),
        "ascending": all(one == sorted(one) for one in times),
        "one_time_for_all": all(len(set(one)) == 1 for one in times),
        "spread_us": probe.summary([max(one) - min(one) for one in times]),
        "newest_is_old_us": probe.summary(
            [one["now_us"] - max(at) for (one, _), at in zip(filled, times)]
        ),
        "between_samples_us": [
            probe.summary([b - a for a, b in zip(one, one[1:])]) for one in of_pid
        ],
        "came_twice": len(keys) - len(set(keys)),
        "own_samples": len(own),
        "sm_percent": probe.summary([sample["sm"] for sample in own]),
        "not_percent": sorted({sample["sm"] for sample in own if sample["sm"] > 100})[:8],
        "of_unknown_processes": len(keys) - len(own),
    }

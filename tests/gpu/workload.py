"""Processes that keep a GPU busy, and how long their kernels take alone."""

import os
import time
from ctypes import byref, c_uint64, c_void_p

import parts
import probe
from parts import report
from probe import Driver

# Iterations of `probe.work` with which its speed is measured.
ITERATIONS = 200_000
# Microseconds of the kernel that measures it.
MEASURED = 10_000
# Microseconds from which a run is waited for alone.
LONG = 10_000
# Microseconds of a batch of shorter ones.
SHORT = 1_000


def start(function, *arguments, environment=None):
    return parts.Worker(
        function, *arguments, script=os.path.abspath(__file__), environment=environment
    )


def iterations_of_microsecond(driver):
    """How many iterations of `probe.work` take a microsecond while nothing else uses the GPU."""
    heat, kernel = driver.kernels(probe.timed(probe.spin, 50000), probe.timed(probe.work, MEASURED))
    stream = driver.stream()
    # The GPU raises its clock first.
    driver.timed(driver.launcher(heat, stream=stream), stream, parts.scaled(10, 2))
    iterations = ITERATIONS
    for _ in range(3):
        took = driver.timed(driver.launcher(kernel, count=iterations, stream=stream), stream)
        iterations = max(1, int(iterations * MEASURED / took))
    return iterations / MEASURED


def own_time(driver, microseconds, rate):
    """Microseconds that this kernel of `probe.work` really takes, alone and launched in a row."""
    (kernel,) = driver.kernels(probe.timed(probe.work, microseconds))
    stream = driver.stream()
    run = driver.launcher(kernel, count=int(rate * microseconds), stream=stream)
    driver.timed(run, stream)
    return driver.timed(run, stream, max(2, min(200, parts.scaled(500_000, 1) // microseconds)))


def speed():
    """Reports iterations of a microsecond."""
    report(rate=iterations_of_microsecond(Driver()))


def own_times(rate, *all_microseconds):
    """Reports the time of each kernel alone."""
    driver = Driver()
    report(own_us={us: own_time(driver, int(us), float(rate)) for us in all_microseconds})


def launch_loop(driver, run, streams, batch, warm, seconds, pause, stopped, of_run):
    """Launches until the input ends; reports the kernels that ended in the time after the warm-up,
    of which a run has `of_run`. One batch is always queued behind the one that runs, unless it
    pauses."""
    events = [[driver.event() for _ in streams] for _ in range(2)]
    done, begun, queued, newest = 0, None, False, 0
    began = time.monotonic()
    while not stopped.is_set():
        for _ in range(batch):
            run()
        for event, stream in zip(events[newest], streams):
            driver("cuEventRecord", event, stream)
        for event in events[newest if pause else 1 - newest] if pause or queued else ():
            driver("cuEventSynchronize", event)
        if pause:
            time.sleep(pause)
        queued, newest = True, 1 - newest
        now = time.monotonic()
        if begun is None:
            if now - began >= warm:
                begun, done = now, 0
        elif done is not None:
            done += batch
            if now - begun >= seconds:
                report(runs=done * of_run, seconds=now - begun)
                done = None
    driver("cuCtxSynchronize")


def busy(
    microseconds, rate, warm, seconds, pause="0", graph_size="1", streams="1", varying="0"
):
    """Waits for a line, then launches `probe.work` until the input ends: in graphs, in several
    streams, or with every tenth launch a hundred times as long, if asked to."""
    driver = Driver()
    microseconds, graph_size, streams = int(microseconds), int(graph_size), int(streams)
    (kernel,) = driver.kernels(probe.timed(probe.work, microseconds))
    count = int(float(rate) * microseconds)
    own = [driver.stream() for _ in range(streams)]
    each = [driver.launcher(kernel, count=count, stream=stream) for stream in own]

    def run_each():
        for one in each:
            one()

    run, of_run = (run_each, streams) if streams > 1 else (each[0], 1)
    if int(varying):
        run, of_run = varied(each[0], count), 10
    if graph_size > 1:
        ready = captured(driver, run, own[0], graph_size)
        run, of_run = lambda: driver("cuGraphLaunch", ready, own[0]), graph_size
    run()
    driver("cuCtxSynchronize")
    report(ready=True, pid=os.getpid())
    parts.next_input()
    stopped = parts.ended_input()
    # A long run is waited for alone, so that the time after the warm-up has whole ones.
    of_batch = microseconds * of_run
    batch = 1 if float(pause) or of_batch >= LONG else max(4, SHORT // of_batch)
    launch_loop(
        driver, run, own, batch, float(warm), float(seconds), float(pause), stopped, of_run
    )


def varied(run, count):
    """Ten launches of one kernel, the last of which does a hundred times the work."""

    def ten():
        for factor in (1,) * 9 + (100,):
            # The driver reads it at the launch.
            run.values[1] = factor * count
            run()

    return ten


def captured(driver, run, stream, size):
    """A graph of so many runs, instantiated."""
    driver("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(size):
        run()
    graph = c_void_p()
    driver("cuStreamEndCapture", stream, byref(graph))
    return driver.value(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(0))


if __name__ == "__main__":
    parts.main("workload", globals(), {})

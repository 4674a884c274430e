"""Processes that keep a GPU busy, and how long their kernels take alone."""

import os
import sys
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


def launch_loop(driver, run, stream, batch, warm, seconds, pause, stopped):
    """Launches until the input ends; reports the runs that ended in the time after the warm-up. One
    batch is always queued behind the one that runs, unless it pauses."""
    events = [driver.event(), driver.event()]
    done, begun, queued, newest = 0, None, False, 0
    began = time.monotonic()
    while not stopped.is_set():
        for _ in range(batch):
            run()
        driver("cuEventRecord", events[newest], stream)
        if pause:
            driver("cuEventSynchronize", events[newest])
            time.sleep(pause)
        elif queued:
            driver("cuEventSynchronize", events[1 - newest])
        queued, newest = True, 1 - newest
        now = time.monotonic()
        if begun is None:
            if now - began >= warm:
                begun, done = now, 0
        elif done is not None:
            done += batch
            if now - begun >= seconds:
                report(runs=done, seconds=now - begun)
                done = None
    driver("cuStreamSynchronize", stream)


def busy(microseconds, rate, warm, seconds, pause="0", graph_size="1"):
    """Waits for a line, then launches `probe.work` until the input ends, in graphs if asked to."""
    driver = Driver()
    microseconds, graph_size = int(microseconds), int(graph_size)
    (kernel,) = driver.kernels(probe.timed(probe.work, microseconds))
    stream = driver.stream()
    run = driver.launcher(kernel, count=int(float(rate) * microseconds), stream=stream)
    if graph_size > 1:
        run = graph_of(driver, run, stream, graph_size)
    run()
    driver("cuStreamSynchronize", stream)
    report(ready=True, pid=os.getpid())
    sys.stdin.readline()
    stopped = parts.ended_input()
    # A long kernel is waited for alone, so that the time after the warm-up has whole runs.
    batch = 1 if float(pause) or microseconds * graph_size >= LONG else 4
    launch_loop(driver, run, stream, batch, float(warm), float(seconds), float(pause), stopped)


def graph_of(driver, run, stream, size):
    """A function that launches a graph of so many launches."""
    driver("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(size):
        run()
    graph = c_void_p()
    driver("cuStreamEndCapture", stream, byref(graph))
    ready = driver.value(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(0))
    return lambda: driver("cuGraphLaunch", ready, stream)


if __name__ == "__main__":
    parts.main("workload", globals(), {})

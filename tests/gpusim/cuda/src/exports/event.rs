//! Events: points in the work of a stream, with times of the GPU's own clock.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::capture::{self, Capture};
use crate::codes::{
    ERROR_CAPTURED_EVENT, ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE, ERROR_NOT_READY,
    ERROR_STREAM_CAPTURE_INVALIDATED,
};
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::streams;
use crate::timeline::Mark;
use crate::types::Handle;

const NO_TIMING: u32 = 2;

pub(crate) struct Event {
    pub(crate) context: ContextRef,
    flags: u32,
    place: Mutex<Place>,
}

/// Where an event was last recorded.
enum Place {
    Nowhere,
    Work(Arc<Mark>),
    Captured(Arc<Capture>, Vec<usize>),
}

calls! { CALLS:
    cuEventCreate 2000 cuEventCreate(event: Out<Handle>, flags: u32) {
        let context = current()?;
        if event.is_null() || flags > 7 {
            return Err(ERROR_INVALID_VALUE);
        }
        event.put(driver()?.objects.events.add(Event {
            context,
            flags,
            place: Mutex::new(Place::Nowhere),
        }))
    }

    cuEventDestroy 2000 cuEventDestroy(event: Handle), 4000 cuEventDestroy_v2 {
        current()?;
        driver()?.objects.events.remove(event).map(|_| ())
    }

    cuEventRecord 2000 cuEventRecord(event: Handle, stream: Handle) / 7000 cuEventRecord_ptsz as own {
        record(event, stream, own)
    }

    cuEventQuery 2000 cuEventQuery(event: Handle) {
        let mark = marked(event)?;
        let reached = |mark: Arc<Mark>| {
            let driver = driver()?;
            let reached = driver.reached(&mark).is_some();
            driver.heap.settle(driver);
            Ok(reached)
        };
        match mark.map(reached) {
            None | Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => Err(ERROR_NOT_READY),
            Some(Err(code)) => Err(code),
        }
    }

    cuEventSynchronize 2000 cuEventSynchronize(event: Handle) {
        if let Some(mark) = marked(event)? {
            let driver = driver()?;
            driver.wait_for(&mark);
            driver.settle(mark.gpu_index);
        }
        Ok(())
    }

    cuEventElapsedTime 2000 cuEventElapsedTime(
        time: Out<f32>, start: Handle, end: Handle,
    ), 12080 cuEventElapsedTime_v2 {
        elapsed(&time, start, end)
    }

    cuStreamWaitEvent 3020 cuStreamWaitEvent(
        stream: Handle, event: Handle, _flags: u32,
    ) / 7000 cuStreamWaitEvent_ptsz as own {
        wait(stream, event, own)
    }
}

fn find(event: Handle) -> Answer<Arc<Event>> {
    driver()?.objects.events.get(event)
}

fn record(event: Handle, stream: Handle, own: bool) -> Answer {
    let (event, stream) = (find(event)?, streams::find(stream, own)?);
    if !event.context.is(stream.context) {
        return Err(ERROR_INVALID_HANDLE);
    }
    if let Some(capture) = stream.capture.lock().clone() {
        if capture.is_invalid() {
            return Err(ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let tail = capture.tail(stream.id);
        *event.place.lock() = Place::Captured(capture, tail);
        return Ok(());
    }
    capture::check_legacy(&stream)?;
    let mark = driver()?.event_mark(stream.context.gpu_index, stream.behind());
    if mark.is_late() {
        stream.await_mark(&mark);
    }
    *event.place.lock() = Place::Work(mark);
    Ok(())
}

/// The mark that the GPU must reach for an event, if it was ever recorded.
fn marked(event: Handle) -> Answer<Option<Arc<Mark>>> {
    let event = find(event)?;
    let place = event.place.lock();
    match &*place {
        Place::Captured(capture, _) => {
            capture.invalidate();
            Err(ERROR_CAPTURED_EVENT)
        }
        Place::Nowhere => capture::check_unsafe().map(|()| None),
        Place::Work(mark) => capture::check_unsafe().map(|()| Some(Arc::clone(mark))),
    }
}

fn elapsed(time: &Out<f32>, start: Handle, end: Handle) -> Answer {
    let (driver, mut times) = (driver()?, [0; 2]);
    let mut ppm = 0;
    for (event, place) in [start, end].into_iter().zip(&mut times) {
        let has_time = find(event)?.flags & NO_TIMING == 0;
        let mark = marked(event)?
            .filter(|_| has_time)
            .ok_or(ERROR_INVALID_HANDLE)?;
        *place = driver.reached(&mark).ok_or(ERROR_NOT_READY)?;
        ppm = driver.on_gpu(mark.gpu_index, |gpu| gpu.clock_ppm);
    }
    let (later, sign) = match times[1].checked_sub(times[0]) {
        Some(time) => (time, 1.0),
        None => (times[0] - times[1], -1.0),
    };
    // Steps of half a microsecond, as GPUs have them.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "the driver's own answer is a 32-bit float"
    )]
    let milliseconds = ((later / 500 * 500) as f64 / 1e6 * (1.0 + f64::from(ppm) / 1e6)) as f32;
    time.put(sign * milliseconds)
}

fn wait(stream: Handle, event: Handle, own: bool) -> Answer {
    let (event, stream) = (find(event)?, streams::find(stream, own)?);
    let place = event.place.lock();
    let mut captured = stream.capture.lock();
    match (&*place, captured.as_ref()) {
        (Place::Nowhere, _) => Ok(()),
        (Place::Work(mark), None) if mark.gpu_index == stream.context.gpu_index => {
            stream.follow(mark.number())
        }
        (Place::Work(mark), None) => {
            stream.await_mark(mark);
            Ok(())
        }
        (Place::Work(_), Some(capture)) => {
            capture.invalidate();
            Err(crate::codes::ERROR_STREAM_CAPTURE_ISOLATION)
        }
        (Place::Captured(capture, nodes), known) => {
            if known.is_some_and(|known| known.id != capture.id) {
                return Err(crate::codes::ERROR_STREAM_CAPTURE_MERGE);
            }
            capture.join(&stream, nodes);
            *captured = Some(Arc::clone(capture));
            Ok(())
        }
    }
}

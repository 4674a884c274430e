//! Capture of streams.

use std::sync::Arc;

use crate::calls::calls;
use crate::capture::{self, Capture, GLOBAL, RELAXED};
use crate::codes::{
    ERROR_ILLEGAL_STATE, ERROR_INVALID_VALUE, ERROR_STREAM_CAPTURE_UNMATCHED,
    ERROR_STREAM_CAPTURE_UNSUPPORTED, ERROR_STREAM_CAPTURE_WRONG_THREAD,
};
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::graph::Graph;
use crate::streams::{self, StreamKind};
use crate::types::Handle;

/// `CUstreamCaptureStatus`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

calls! { CALLS:
    cuStreamBeginCapture 10000 cuStreamBeginCapture(stream: Handle) / 10000 cuStreamBeginCapture_ptsz as own {
        begin(stream, own, GLOBAL)
    }

    cuStreamBeginCapture 10010 cuStreamBeginCapture_v2(
        stream: Handle, mode: u32,
    ) / 10010 cuStreamBeginCapture_v2_ptsz as own {
        begin(stream, own, mode)
    }

    cuStreamEndCapture 10000 cuStreamEndCapture(
        stream: Handle, graph: Out<Handle>,
    ) / 10000 cuStreamEndCapture_ptsz as own {
        let stream = streams::find(stream, own)?;
        graph.put(0)?;
        let mut captured = stream.capture.lock();
        let capture = captured.clone().ok_or(ERROR_ILLEGAL_STATE)?;
        if !capture.is_of_this_thread() {
            return Err(ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        *captured = None;
        drop(captured);
        let ended = capture.end();
        driver()?.objects.streams.each(|other| {
            let mut theirs = other.capture.lock();
            if theirs.as_ref().is_some_and(|one| one.id == capture.id) {
                *theirs = None;
            }
        });
        if capture.origin != stream.id {
            return Err(ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let made = Graph::default();
        *made.0.lock() = ended?;
        graph.put(driver()?.objects.graphs.add(made))
    }

    cuStreamIsCapturing 10000 cuStreamIsCapturing(
        stream: Handle, status: Out<u32>,
    ) / 10000 cuStreamIsCapturing_ptsz as own {
        let stream = streams::find(stream, own)?;
        capture::check_question(&stream)?;
        status.put(status_of(stream.capture.lock().as_ref()))
    }

    cuThreadExchangeStreamCaptureMode 10010 cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        driver()?;
        let wanted = mode.get()?;
        if wanted > RELAXED {
            return Err(ERROR_INVALID_VALUE);
        }
        mode.put(capture::exchange_mode(wanted))
    }
}

fn begin(stream: Handle, own: bool, mode: u32) -> Answer {
    let stream = streams::find(stream, own)?;
    if mode > RELAXED {
        return Err(ERROR_INVALID_VALUE);
    }
    if stream.kind == StreamKind::Legacy {
        return Err(ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut captured = stream.capture.lock();
    if captured.is_some() {
        return Err(ERROR_ILLEGAL_STATE);
    }
    *captured = Some(capture::begin(&stream, mode));
    Ok(())
}

fn status_of(capture: Option<&Arc<Capture>>) -> u32 {
    match capture {
        None => NONE,
        Some(capture) if capture.is_invalid() => INVALIDATED,
        Some(_) => ACTIVE,
    }
}

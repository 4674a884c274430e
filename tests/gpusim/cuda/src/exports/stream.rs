//! Streams: creating them, their properties, waiting for them.

use crate::calls::calls;
use crate::capture;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_NOT_READY, ERROR_NOT_SUPPORTED};
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::ffi::{Answer, Out, as_pointer};
use crate::streams::{self, Stream, StreamKind};
use crate::types::{DevicePointer, Handle};

calls! { CALLS:
    cuStreamCreate 2000 cuStreamCreate(stream: Out<Handle>, flags: u32) {
        create(&stream, current()?, flags, 0)
    }

    cuGreenCtxStreamCreate 12050 cuGreenCtxStreamCreate(
        stream: Out<Handle>, green: Handle, flags: u32, priority: i32,
    ) {
        if flags != 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        create(&stream, driver()?.contexts.of_green(green)?, flags, priority)
    }

    cuStreamCreateWithPriority 5050 cuStreamCreateWithPriority(
        stream: Out<Handle>, flags: u32, priority: i32,
    ) {
        create(&stream, current()?, flags, priority)
    }

    cuStreamDestroy 2000 cuStreamDestroy(stream: Handle), 4000 cuStreamDestroy_v2 {
        current()?;
        let gone = driver()?.objects.streams.remove(stream)?;
        if let Some(capture) = gone.capture.lock().take() {
            let _ = capture.end();
        }
        Ok(())
    }

    cuStreamGetPriority 5050 cuStreamGetPriority(
        stream: Handle, priority: Out<i32>,
    ) / 7000 cuStreamGetPriority_ptsz as own {
        priority.put(streams::find(stream, own)?.priority)
    }

    cuStreamGetCtx 9020 cuStreamGetCtx(
        stream: Handle, context: Out<Handle>,
    ) / 9020 cuStreamGetCtx_ptsz as own {
        context.put(streams::context_of(stream, own)?.handle())
    }

    cuStreamGetCtx 12050 cuStreamGetCtx_v2(
        stream: Handle, context: Out<Handle>, green: Out<Handle>,
    ) / 12050 cuStreamGetCtx_v2_ptsz as own {
        let found = streams::context_of(stream, own)?;
        green.put_if(0);
        context.put(found.handle())
    }

    cuStreamQuery 2000 cuStreamQuery(stream: Handle) / 7000 cuStreamQuery_ptsz as own {
        let stream = streams::find(stream, own)?;
        capture::check_stream(&stream)?;
        if stream.is_idle()? { Ok(()) } else { Err(ERROR_NOT_READY) }
    }

    cuStreamSynchronize 2000 cuStreamSynchronize(stream: Handle) / 7000 cuStreamSynchronize_ptsz as own {
        let stream = streams::find(stream, own)?;
        capture::check_stream(&stream)?;
        capture::check_unsafe()?;
        stream.wait()
    }

    cuStreamWaitValue32 11070 cuStreamWaitValue32_v2(
        stream: Handle, address: DevicePointer, value: u32, flags: u32,
    ) / 11070 cuStreamWaitValue32_v2_ptsz as own {
        let stream = streams::find(stream, own)?;
        if driver()?.heap.find(address).is_none() || flags > 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        if stream.capture.lock().is_some() {
            return Err(ERROR_NOT_SUPPORTED);
        }
        let found = Out::at(as_pointer(address).cast::<u32>()).get()?;
        let is_there = if flags == 1 { found == value } else { found.wrapping_sub(value) < 1 << 31 };
        if !is_there {
            stream.wait_forever();
        }
        Ok(())
    }
}

fn create(out: &Out<Handle>, context: ContextRef, flags: u32, priority: i32) -> Answer {
    if out.is_null() || flags > 1 {
        return Err(ERROR_INVALID_VALUE);
    }
    let kind = if flags == 0 {
        StreamKind::Blocking
    } else {
        StreamKind::Free
    };
    let stream = Stream::new(context, kind, priority.clamp(-5, 0));
    out.put(driver()?.objects.streams.add(stream))
}

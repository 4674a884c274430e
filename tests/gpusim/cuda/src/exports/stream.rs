//! Streams: making them, and what they are.

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out};
use crate::streams::{self, Stream};
use crate::types::Handle;

calls! { CALLS:
    cuStreamCreate 2000 cuStreamCreate(stream: Out<Handle>, flags: u32) {
        create(&stream, flags, 0)
    }

    cuStreamCreateWithPriority 5050 cuStreamCreateWithPriority(
        stream: Out<Handle>, flags: u32, priority: i32,
    ) {
        create(&stream, flags, priority)
    }

    cuStreamDestroy 4000 cuStreamDestroy_v2(stream: Handle) {
        current()?;
        let gone = driver()?.objects.streams.remove(stream, ERROR_INVALID_HANDLE);
        gone.map(|_| ())
    }

    cuStreamGetFlags 5050 cuStreamGetFlags(
        stream: Handle, flags: Out<u32>,
    ) / 7000 cuStreamGetFlags_ptsz as own {
        streams::context_of(stream, own)?;
        let known = driver()?.objects.streams.get(stream, ERROR_INVALID_HANDLE);
        flags.put(known.map_or(0, |stream| stream.flags))
    }

    cuStreamGetPriority 5050 cuStreamGetPriority(
        stream: Handle, priority: Out<i32>,
    ) / 7000 cuStreamGetPriority_ptsz as own {
        streams::context_of(stream, own)?;
        let known = driver()?.objects.streams.get(stream, ERROR_INVALID_HANDLE);
        priority.put(known.map_or(0, |stream| stream.priority))
    }

    cuStreamGetCtx 9020 cuStreamGetCtx(
        stream: Handle, context: Out<Handle>,
    ) / 9020 cuStreamGetCtx_ptsz as own {
        context.put(streams::context_of(stream, own)?.handle())
    }
}

fn create(out: &Out<Handle>, flags: u32, priority: i32) -> Answer {
    let context = current()?;
    if out.is_null() || flags > 1 {
        return Err(ERROR_INVALID_VALUE);
    }
    out.put(driver()?.objects.streams.add(Stream {
        context,
        flags,
        priority: priority.clamp(-5, 0),
    }))
}

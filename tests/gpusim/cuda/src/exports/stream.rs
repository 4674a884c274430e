//! Streams: creating them, their properties, waiting for them.

use crate::calls::calls;
use crate::capture;
use crate::capture::{Node, Work};
use crate::codes::{
    ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE, ERROR_NOT_READY, ERROR_NOT_SUPPORTED,
};
use crate::context::current;
use crate::driver::driver;
use crate::ffi::{Answer, Out, as_pointer};
use crate::streams::{self, Stream, StreamKind};
use crate::types::{DevicePointer, Handle};

calls! { CALLS:
    cuStreamCreate 2000 cuStreamCreate(stream: Out<Handle>, flags: u32) {
        create(&stream, flags, 0)
    }

    cuStreamCreateWithPriority 5050 cuStreamCreateWithPriority(
        stream: Out<Handle>, flags: u32, priority: i32,
    ) {
        create(&stream, flags, priority)
    }

    cuStreamDestroy 2000 cuStreamDestroy(stream: Handle) { destroy(stream) }

    cuStreamDestroy 4000 cuStreamDestroy_v2(stream: Handle) { destroy(stream) }

    cuStreamGetFlags 5050 cuStreamGetFlags(
        stream: Handle, flags: Out<u32>,
    ) / 7000 cuStreamGetFlags_ptsz as own {
        flags.put(u32::from(streams::find(stream, own)?.kind == StreamKind::Free))
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

    cuStreamGetId 12000 cuStreamGetId(
        stream: Handle, id: Out<u64>,
    ) / 12000 cuStreamGetId_ptsz as own {
        id.put(streams::find(stream, own)?.id)
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

    cuLaunchHostFunc 10000 cuLaunchHostFunc(
        stream: Handle, function: u64, data: u64,
    ) / 10000 cuLaunchHostFunc_ptsz as own {
        host_function(stream, own, function, data)
    }
}

fn create(out: &Out<Handle>, flags: u32, priority: i32) -> Answer {
    let context = current()?;
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

fn destroy(stream: Handle) -> Answer {
    current()?;
    let streams = &driver()?.objects.streams;
    let gone = streams.remove(stream, ERROR_INVALID_HANDLE)?;
    if let Some(capture) = gone.capture.lock().take() {
        let _ = capture.end();
    }
    Ok(())
}

/// Calls the program's function when the stream has come so far. The stream does not wait for it.
fn host_function(stream: Handle, own: bool, function: u64, data: u64) -> Answer {
    let stream = streams::find(stream, own)?;
    if function == 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    if let Some(capture) = stream.capture.lock().clone() {
        return capture.add(stream.id, Node::new(Work::Host));
    }
    let (driver, gpu_index, number) = (driver()?, stream.context.gpu_index, stream.behind());
    std::thread::spawn(move || {
        driver.wait_until_done(gpu_index, number);
        // SAFETY: the caller gave the address of a function of this type, to be called with this
        // pointer on a thread of the driver's.
        unsafe {
            let function: extern "C" fn(*mut std::ffi::c_void) =
                std::mem::transmute(as_pointer(function));
            function(as_pointer(data));
        }
    });
    Ok(())
}

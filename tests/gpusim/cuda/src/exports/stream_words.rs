//! Words that a stream writes and waits for, its attributes, and callbacks. A write is done when
//! the call returns, as copies in stream order are.

use crate::calls::calls;
use crate::capture::{Node, Work};
use crate::codes::{ERROR_INVALID_VALUE, ERROR_NOT_SUPPORTED};
use crate::driver::driver;
use crate::exports::copy::{fill, known};
use crate::ffi::{Answer, Out, as_pointer};
use crate::heap::Kind;
use crate::streams;
use crate::types::{Device, DevicePointer, Handle};

calls! { CALLS:
    cuStreamWriteValue32 8000 cuStreamWriteValue32(
        stream: Handle, address: DevicePointer, value: u32, _flags: u32,
    ) / 8000 cuStreamWriteValue32_ptsz as own {
        write((stream, own), address, value)
    }

    cuStreamWriteValue32 11070 cuStreamWriteValue32_v2(
        stream: Handle, address: DevicePointer, value: u32, _flags: u32,
    ) / 11070 cuStreamWriteValue32_v2_ptsz as own {
        write((stream, own), address, value)
    }

    cuStreamWriteValue64 9000 cuStreamWriteValue64(
        stream: Handle, address: DevicePointer, value: u64, _flags: u32,
    ) / 9000 cuStreamWriteValue64_ptsz as own {
        write((stream, own), address, value)
    }

    cuStreamWriteValue64 11070 cuStreamWriteValue64_v2(
        stream: Handle, address: DevicePointer, value: u64, _flags: u32,
    ) / 11070 cuStreamWriteValue64_v2_ptsz as own {
        write((stream, own), address, value)
    }

    cuStreamWaitValue32 8000 cuStreamWaitValue32(
        stream: Handle, address: DevicePointer, value: u32, flags: u32,
    ) / 8000 cuStreamWaitValue32_ptsz as own {
        let is_not_less = |found: u32| found.wrapping_sub(value) < 1 << 31;
        wait((stream, own), address, value, flags, is_not_less)
    }

    cuStreamWaitValue64 9000 cuStreamWaitValue64(
        stream: Handle, address: DevicePointer, value: u64, flags: u32,
    ) / 9000 cuStreamWaitValue64_ptsz as own {
        let is_not_less = |found: u64| found.wrapping_sub(value) < 1 << 63;
        wait((stream, own), address, value, flags, is_not_less)
    }

    cuStreamWaitValue64 11070 cuStreamWaitValue64_v2(
        stream: Handle, address: DevicePointer, value: u64, flags: u32,
    ) / 11070 cuStreamWaitValue64_v2_ptsz as own {
        let is_not_less = |found: u64| found.wrapping_sub(value) < 1 << 63;
        wait((stream, own), address, value, flags, is_not_less)
    }

    cuStreamAttachMemAsync 6000 cuStreamAttachMemAsync(
        stream: Handle, pointer: DevicePointer, _bytes: usize, flags: u32,
    ) / 7000 cuStreamAttachMemAsync_ptsz as own {
        streams::find(stream, own)?;
        let found = driver()?.heap.find(pointer).map(|found| found.kind);
        if found == Some(Kind::Managed) && matches!(flags, 1 | 2 | 4) {
            Ok(())
        } else {
            Err(ERROR_INVALID_VALUE)
        }
    }

    cuStreamGetAttribute 11000 cuStreamGetAttribute(
        stream: Handle, _attribute: u32, value: Out<AttributeValue>,
    ) / 11000 cuStreamGetAttribute_ptsz as own {
        streams::find(stream, own)?;
        value.put([0; 8])
    }

    cuStreamSetAttribute 11000 cuStreamSetAttribute(
        stream: Handle, _attribute: u32, value: Out<AttributeValue>,
    ) / 11000 cuStreamSetAttribute_ptsz as own {
        value.get()?;
        streams::find(stream, own).map(|_| ())
    }

    cuStreamCopyAttributes 11000 cuStreamCopyAttributes(
        to: Handle, from: Handle,
    ) / 11000 cuStreamCopyAttributes_ptsz as own {
        streams::find(from, own)?;
        streams::find(to, own).map(|_| ())
    }

    cuStreamGetDevice 12080 cuStreamGetDevice(
        stream: Handle, device: Out<Device>,
    ) / 12080 cuStreamGetDevice_ptsz as own {
        device.put(streams::context_of(stream, own)?.device)
    }

    cuStreamGetCtx 12050 cuStreamGetCtx_v2(
        stream: Handle, context: Out<Handle>, green: Out<Handle>,
    ) / 12050 cuStreamGetCtx_v2_ptsz as own {
        let found = streams::context_of(stream, own)?;
        green.put_if(0);
        context.put(found.handle())
    }

    cuStreamGetGreenCtx 12040 cuStreamGetGreenCtx(stream: Handle, green: Out<Handle>) {
        streams::find(stream, false)?;
        green.put(0)
    }

    cuStreamAddCallback 5000 cuStreamAddCallback(
        stream: Handle, callback: u64, data: u64, flags: u32,
    ) / 7000 cuStreamAddCallback_ptsz as own {
        let handle = stream;
        let stream = streams::find(stream, own)?;
        if callback == 0 || flags != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if let Some(capture) = stream.capture.lock().clone() {
            return capture.add(stream.id, Node::new(Work::Host));
        }
        let (driver, gpu_index, number) = (driver()?, stream.context.gpu_index, stream.behind());
        std::thread::spawn(move || {
            driver.wait_until_done(gpu_index, number);
            // SAFETY: the caller gave the address of a function of this type, to be called with
            // this pointer on a thread of the driver's.
            unsafe {
                let callback: extern "C" fn(Handle, u32, *mut std::ffi::c_void) =
                    std::mem::transmute(as_pointer(callback));
                callback(handle, 0, as_pointer(data));
            }
        });
        Ok(())
    }

    cuFlushGPUDirectRDMAWrites 11030 cuFlushGPUDirectRDMAWrites(_target: u32, _scope: u32) {
        driver().map(|_| ())
    }
}

/// `CUstreamAttrValue`.
type AttributeValue = [u64; 8];

fn write<T: Copy>((stream, own): (Handle, bool), address: DevicePointer, value: T) -> Answer {
    let stream = streams::find(stream, own)?;
    known(address, size_of::<T>())?;
    if stream.capture.lock().is_some() {
        return Err(ERROR_NOT_SUPPORTED);
    }
    fill(address, value, 1)
}

/// `CU_STREAM_WAIT_VALUE_GEQ` is 0, `CU_STREAM_WAIT_VALUE_EQ` is 1.
fn wait<T: Copy + PartialEq>(
    (stream, own): (Handle, bool),
    address: DevicePointer,
    value: T,
    flags: u32,
    is_not_less: impl Fn(T) -> bool,
) -> Answer {
    let stream = streams::find(stream, own)?;
    known(address, size_of::<T>())?;
    if flags > 1 {
        return Err(ERROR_INVALID_VALUE);
    }
    if stream.capture.lock().is_some() {
        return Err(ERROR_NOT_SUPPORTED);
    }
    let found = Out::at(as_pointer(address).cast::<T>()).get()?;
    let is_there = if flags == 1 {
        found == value
    } else {
        is_not_less(found)
    };
    if !is_there {
        stream.wait_forever();
    }
    Ok(())
}

//! Fills and copies within a device. Large ones use its memory as long as a kernel would, so they are
//! paced like kernels. Copies between the host and a device are no compute; those of rows, arrays and
//! between contexts are not paced: the monitor measures what they use, and corrects the rate.

use core::ffi::c_uint;

use aliquot_pacer::cost::key;
use aliquot_pacer::scale::Extent;

use super::ipc::DEVICE_ORDINAL;
use crate::device_pace::LaunchWork;
use crate::driver::call;
use crate::ffi::{Code, Handle, Out, Pointer, SUCCESS, long};
use crate::pace;
use crate::process::{self, ProcessState};

/// Fills and copies of this many bytes or more are paced; a T4 takes 26 us for a copy, at 320 GB/s.
const LARGE: u64 = 4 << 20;
/// Distinguishes transfers from functions.
const TRANSFER: u64 = u64::MAX;
const MEMORY_TYPE: c_uint = 2;
const DEVICE: c_uint = 2;

/// What moves, and how. Each kind has a rate of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferKind {
    Fill = 1,
    FillRows,
    Copy,
}

impl TransferKind {
    fn work(self, bytes: u64, stream: Handle) -> LaunchWork {
        LaunchWork {
            key: key([self as u64, size_class(bytes), TRANSFER]),
            stream,
            // No function has such an address.
            extent: Extent {
                function: self as u64,
                amount: bytes,
            },
        }
    }

    /// Makes a call that moves the product of these, in bytes, within a device.
    #[inline]
    pub(crate) fn pace<const N: usize>(
        self,
        factors: [usize; N],
        stream: Handle,
        call: impl FnOnce() -> Code,
    ) -> Code {
        let bytes = factors.map(long).into_iter().fold(1, u64::saturating_mul);
        if bytes < LARGE {
            return call();
        }
        pace::launch(self.work(bytes, stream), call)
    }
}

/// The size in steps of an eighth or less: sizes of one step cost about the same.
fn size_class(bytes: u64) -> u64 {
    let step = (u64::BITS - bytes.leading_zeros()).saturating_sub(4);
    bytes >> step << step
}

/// Makes a copy between two addresses, each on the host or on a device.
pub(crate) fn copy(
    ends: [Pointer; 2],
    bytes: usize,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    // The driver is only asked about many bytes.
    let is_within = long(bytes) >= LARGE && is_within_device(ends);
    let within = if is_within { bytes } else { 0 };
    TransferKind::Copy.pace([within], stream, call)
}

/// Makes a copy between two addresses on devices.
pub(crate) fn copy_on_devices(
    ends: [Pointer; 2],
    bytes: usize,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let is_between = long(bytes) >= LARGE && is_between_devices(ends);
    let within = if is_between { 0 } else { bytes };
    TransferKind::Copy.pace([within], stream, call)
}

/// Makes copies between pairs of addresses, each on the host or on a device; they are paced as one.
pub(crate) fn copy_batch(
    ends: [Out<Pointer>; 2],
    sizes: Out<usize>,
    count: usize,
    stream: Handle,
    call: impl FnOnce() -> Code,
) -> Code {
    let within = bytes_of_batch(ends, sizes, count);
    TransferKind::Copy.pace([within], stream, call)
}

/// The bytes that the copies of a batch move within a device, if they are many.
fn bytes_of_batch([to, from]: [Out<Pointer>; 2], sizes: Out<usize>, count: usize) -> usize {
    if to.is_null() || from.is_null() || sizes.is_null() {
        return 0;
    }
    let size = |i: usize| sizes.get_at(i).unwrap_or(0);
    let all = (0..count).map(size).fold(0, usize::saturating_add);
    if long(all) < LARGE {
        return 0;
    }
    let is_within = |i: &usize| {
        let ends = to.get_at(*i).zip(from.get_at(*i));
        ends.is_some_and(|(to, from)| is_within_device([to, from]))
    };
    let within = (0..count).filter(is_within).map(size);
    within.fold(0, usize::saturating_add)
}

fn is_within_device(ends: [Pointer; 2]) -> bool {
    // Memory that the driver does not know is the host's.
    let is_device_memory = |address| attribute(MEMORY_TYPE, address) == Some(DEVICE);
    ends.into_iter().all(is_device_memory) && !is_between_devices(ends)
}

fn is_between_devices(ends: [Pointer; 2]) -> bool {
    let has_one = |process: &ProcessState| process.limits.devices() < 2;
    if process::limited().is_none_or(has_one) {
        return false;
    }
    let [one, other] = ends.map(|address| attribute(DEVICE_ORDINAL, address));
    one.is_some() && other.is_some() && one != other
}

fn attribute(number: c_uint, address: Pointer) -> Option<c_uint> {
    let mut value = 0;
    let code = call::cuPointerGetAttribute(Out::to(&mut value), number, address);
    (code == SUCCESS).then_some(value)
}

//! Captures of streams into graphs.

use core::ffi::{c_uint, c_void};

use crate::ffi::{Code, Handle, Out};
use crate::stream::{begin_capture, end_stream, finish_capture};

pub(crate) fn begin(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    begin_capture(stream, || real(stream))
}

pub(crate) fn begin_v2(
    real: extern "C" fn(Handle, c_uint) -> Code,
    stream: Handle,
    mode: c_uint,
) -> Code {
    begin_capture(stream, || real(stream, mode))
}

pub(crate) fn begin_to(
    real: extern "C" fn(Handle, Handle, *const c_void, *const c_void, usize, c_uint) -> Code,
    stream: Handle,
    graph: Handle,
    after: *const c_void,
    edges: *const c_void,
    count: usize,
    mode: c_uint,
) -> Code {
    begin_capture(stream, || real(stream, graph, after, edges, count, mode))
}

pub(crate) fn begin_again(
    real: extern "C" fn(Handle, c_uint, Handle, *const c_void, *mut c_void) -> Code,
    stream: Handle,
    mode: c_uint,
    graph: Handle,
    callback: *const c_void,
    data: *mut c_void,
) -> Code {
    begin_capture(stream, || real(stream, mode, graph, callback, data))
}

pub(crate) fn end(
    real: extern "C" fn(Handle, Out<Handle>) -> Code,
    stream: Handle,
    graph: Out<Handle>,
) -> Code {
    finish_capture(stream, real(stream, graph))
}

pub(crate) fn destroy(real: extern "C" fn(Handle) -> Code, stream: Handle) -> Code {
    end_stream(stream, || real(stream))
}

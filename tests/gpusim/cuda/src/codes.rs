//! The error codes that calls here may answer, with the driver's names and texts. Needs no
//! initialised driver.

macro_rules! codes {
    ($($code:literal $name:ident $words:literal;)*) => {
        $(
            #[allow(dead_code, reason = "a server of MPS sends some")]
            pub(crate) const $name: u32 = $code;
        )*
        /// The name and the text of a code.
        pub(crate) fn describe(code: u32) -> Option<(&'static CStr, &'static CStr)> {
            Some(match code {
                $($code => (text(concat!("CUDA_", stringify!($name), "\0")), text(concat!($words, "\0"))),)*
                _ => return None,
            })
        }
    };
}

use std::ffi::CStr;

fn text(with_zero: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(with_zero.as_bytes()).expect("the macro closes each text")
}

codes! {
    0 SUCCESS "no error";
    1 ERROR_INVALID_VALUE "invalid argument";
    2 ERROR_OUT_OF_MEMORY "out of memory";
    3 ERROR_NOT_INITIALIZED "initialization error";
    46 ERROR_DEVICE_UNAVAILABLE "CUDA-capable device(s) is/are busy or unavailable";
    100 ERROR_NO_DEVICE "no CUDA-capable device is detected";
    101 ERROR_INVALID_DEVICE "invalid device ordinal";
    200 ERROR_INVALID_IMAGE "device kernel image is invalid";
    201 ERROR_INVALID_CONTEXT "invalid device context";
    205 ERROR_MAP_FAILED "mapping of buffer object failed";
    214 ERROR_ECC_UNCORRECTABLE "uncorrectable ECC error encountered";
    215 ERROR_UNSUPPORTED_LIMIT "limit is not supported on this architecture";
    301 ERROR_FILE_NOT_FOUND "file not found";
    304 ERROR_OPERATING_SYSTEM "OS call failed or operation not supported on this OS";
    400 ERROR_INVALID_HANDLE "invalid resource handle";
    401 ERROR_ILLEGAL_STATE "the operation cannot be performed in the present state";
    500 ERROR_NOT_FOUND "named symbol not found";
    600 ERROR_NOT_READY "device not ready";
    700 ERROR_ILLEGAL_ADDRESS "an illegal memory access was encountered";
    709 ERROR_CONTEXT_IS_DESTROYED "context is destroyed";
    710 ERROR_ASSERT "device-side assert triggered";
    719 ERROR_LAUNCH_FAILED "unspecified launch failure";
    720 ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "too many blocks in cooperative launch";
    800 ERROR_NOT_PERMITTED "operation not permitted";
    801 ERROR_NOT_SUPPORTED "operation not supported";
    802 ERROR_SYSTEM_NOT_READY "system not yet initialized";
    805 ERROR_MPS_CONNECTION_FAILED "MPS client failed to connect to the MPS control daemon or the MPS server";
    806 ERROR_MPS_RPC_FAILURE "the remote procedural call between the MPS server and the MPS client failed";
    807 ERROR_MPS_SERVER_NOT_READY "MPS server is not ready to accept new MPS client requests";
    808 ERROR_MPS_MAX_CLIENTS_REACHED "the hardware resources required to create MPS client have been exhausted";
    900 ERROR_STREAM_CAPTURE_UNSUPPORTED "operation not permitted when stream is capturing";
    901 ERROR_STREAM_CAPTURE_INVALIDATED "operation failed due to a previous error during capture";
    902 ERROR_STREAM_CAPTURE_MERGE "operation would result in a merge of separate capture sequences";
    903 ERROR_STREAM_CAPTURE_UNMATCHED "capture was not ended in the same stream as it began";
    904 ERROR_STREAM_CAPTURE_UNJOINED "capturing stream has unjoined work";
    905 ERROR_STREAM_CAPTURE_ISOLATION "dependency created on uncaptured work in another stream";
    906 ERROR_STREAM_CAPTURE_IMPLICIT "operation would make the legacy stream depend on a capturing blocking stream";
    907 ERROR_CAPTURED_EVENT "operation not permitted on an event last recorded in a capturing stream";
    908 ERROR_STREAM_CAPTURE_WRONG_THREAD "attempt to terminate a thread-local capture sequence from another thread";
    999 ERROR_UNKNOWN "unknown error";
}

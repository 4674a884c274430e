//! How calls get here: by the exported names, by `cuGetProcAddress`, and, when preloaded, by
//! `dlsym`.
//!
//! `cuGetProcAddress` of the driver is called first, because it knows versions and flags; its
//! address is then replaced by ours. Our `dlsym` jumps to libc's own for every name that is not in
//! the table, so that libc sees the real caller. Names that cannot be the driver's cost a look at
//! their first letters ([`early`]).

use core::ffi::{CStr, c_char, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use std::ffi::CString;

use super::{HOOKS, Hook};
use crate::driver::{in_same_library, is_in_limiter, search};
use crate::early;
use crate::ffi::{Code, Out, SUCCESS, Text};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `..._PER_THREAD_DEFAULT_STREAM`.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// Whether a look-up with these flags asks for calls with per-thread default streams; `own`: its
/// client was compiled for them.
pub(crate) fn is_per_thread(flags: u64, own: bool) -> bool {
    flags & PER_THREAD != 0 || (own && flags & LEGACY == 0)
}

/// The answer of `cuGetProcAddress`, with our function in place of the driver's.
pub(crate) fn replaced(
    code: Code,
    name: Text,
    address: Out<*const ()>,
    version: i32,
    per_thread: bool,
) -> Code {
    let found = address
        .get()
        .filter(|found| code == SUCCESS && !found.is_null());
    let Some(found) = found else { return code };
    if is_own_function(found.cast_mut().cast()) {
        // A driver that looks up its own calls by name found ours.
        return code;
    }
    let same = |hook: &&Hook| {
        let known = hook.real.get();
        known.is_some_and(|known| core::ptr::eq(known.cast_const().cast(), found))
    };
    // A driver may return other addresses than dlsym does; then the name decides.
    let hook = variants_of(name.bytes()).find(same).or_else(|| {
        let has = |hook: &Hook| hook.real.get().is_some();
        let by_name = variant(name.bytes(), version, per_thread, has);
        // A variant that is newer than the table has other arguments and stays the driver's.
        by_name.filter(|hook| !is_newer(hook, found))
    });
    if let Some(hook) = hook {
        address.put(hook.real.ours.0);
    }
    code
}

/// The variants of a call. The name may have the suffix of one of them, such as `_v2_ptsz`.
fn variants_of(name: &[u8]) -> impl Iterator<Item = &'static Hook> {
    HOOKS.iter().filter(move |hook| {
        let suffix = name.strip_prefix(hook.stem.as_bytes());
        !hook.stem.is_empty() && suffix.is_some_and(|rest| matches!(rest, [] | [b'_', ..]))
    })
}

fn is_own_function(address: *mut c_void) -> bool {
    let mut hooks = HOOKS.iter();
    hooks.any(|hook| core::ptr::eq(hook.real.ours.0, address.cast_const().cast()))
}

/// Whether an address is that of a variant of this call that the table does not have.
fn is_newer(hook: &Hook, found: *const ()) -> bool {
    let suffixes = ["", "_ptsz"];
    let forms = (2..=9).flat_map(|number| suffixes.map(|suffix| (number, suffix)));
    forms
        .map(|(number, suffix)| format!("{}_v{number}{suffix}", hook.stem))
        .filter(|name| !HOOKS.iter().any(|hook| hook.name == name))
        .filter_map(|name| CString::new(name).ok())
        .any(|name| core::ptr::eq(hook.real.library.find(&name).cast_const().cast(), found))
}

/// The newest variant of a call that a client of this version may have and that the driver `has`.
fn variant(
    name: &[u8],
    version: i32,
    per_thread: bool,
    has: impl Fn(&Hook) -> bool,
) -> Option<&'static Hook> {
    let matches = |hook: &&Hook| hook.stem.as_bytes() == name && hook.since <= version && has(hook);
    let all = || HOOKS.iter().filter(matches);
    let newest = |own: bool| {
        let forms = all().filter(|hook| hook.per_thread == own);
        forms.max_by_key(|hook| hook.since)
    };
    newest(per_thread).or_else(|| newest(false))
}

/// The answer that there is no such function.
const NOTHING: *mut c_void = without_provenance_mut(1);

/// The answer of our `dlsym`; null: libc is to answer. `caller` is where it returns to.
extern "C" fn routed(handle: *mut c_void, name: *const c_char, caller: *mut c_void) -> *mut c_void {
    early::DLSYM.find();
    // SAFETY: the caller of dlsym passes a C string.
    if name.is_null() || !unsafe { early::may_be_of_driver(name) } {
        return null_mut();
    }
    // SAFETY: the same.
    let name = unsafe { CStr::from_ptr(name) };
    let is_it = |hook: &&Hook| hook.name.as_bytes() == name.to_bytes();
    let Some(hook) = HOOKS.iter().find(is_it) else {
        return null_mut();
    };
    // Only where libc would find something: a program that probes for a driver must not be misled.
    let special = handle.is_null() || handle == libc::RTLD_NEXT;
    let mut is_ours = false;
    if !special {
        let found = search(handle, name);
        if found.is_null() {
            return null_mut();
        }
        is_ours = is_own_function(found);
        if !is_ours {
            if is_in_limiter(found) {
                return null_mut();
            }
            hook.real.library.adopt(handle, found);
        }
    }
    let Some(real) = hook.real.get() else {
        // Through a shim, libc finds ours also for a call that the driver behind it lacks.
        let lacks = is_ours && hook.real.library.is_found();
        return if lacks { NOTHING } else { null_mut() };
    };
    // A stub looks in the driver behind it for what it calls: our function would call the stub again.
    if in_same_library(caller, real) {
        return if special { real } else { null_mut() };
    }
    hook.real.ours.0.cast_mut().cast()
}

#[cfg(all(not(test), target_arch = "x86_64"))]
mod export {
    //! Saves the arguments, calls [`routed`](super::routed) with them and the return address, and
    //! returns its answer, null for [`NOTHING`](super::NOTHING), or jumps to libc.

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    extern "C" fn dlsym() {
        core::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "mov rdx, qword ptr [rsp + 24]",
            "call {routed}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "cmp rax, 1",
            "ja 2f",
            "je 3f",
            "mov rax, qword ptr [rip + {libc}]",
            "jmp rax",
            "3:",
            "xor eax, eax",
            "2:",
            "ret",
            routed = sym super::routed,
            libc = sym crate::early::DLSYM,
        )
    }
}

#[cfg(all(not(test), target_arch = "aarch64"))]
mod export {
    //! Saves the arguments, calls [`routed`](super::routed) with them and the return address, and
    //! returns its answer, null for [`NOTHING`](super::NOTHING), or jumps to libc.

    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    extern "C" fn dlsym() {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-32]!",
            "stp x0, x1, [sp, #16]",
            "mov x2, x30",
            "bl {routed}",
            "mov x9, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbnz x9, 2f",
            "adrp x10, {libc}",
            "ldr x10, [x10, :lo12:{libc}]",
            "br x10",
            "2:",
            "cmp x9, #1",
            "csel x0, xzr, x9, eq",
            "ret",
            routed = sym super::routed,
            libc = sym crate::early::DLSYM,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_newest_variant_for_client_version() {
        for (stem, version, per_thread, expected) in [
            ("cuCtxCreate", 12_040, false, Some("cuCtxCreate_v3")),
            ("cuCtxCreate", 13_000, false, Some("cuCtxCreate_v4")),
            ("cuCtxCreate", 2_000, false, Some("cuCtxCreate")),
            (
                "cuMemAllocAsync",
                13_000,
                true,
                Some("cuMemAllocAsync_ptsz"),
            ),
            ("cuMemAllocAsync", 13_000, false, Some("cuMemAllocAsync")),
            ("cuMemAlloc", 13_000, true, Some("cuMemAlloc_v2")),
            ("cuNothing", 13_000, false, None),
        ] {
            let found = variant(stem.as_bytes(), version, per_thread, |_| true);
            let found = found.map(|hook| hook.name);
            assert_eq!(found, expected, "{stem} {version} {per_thread}");
        }
        // A driver of CUDA 12.4 lacks the newest.
        let old = variant(b"cuCtxCreate", 13_000, false, |hook| hook.since < 12_050);
        assert_eq!(old.map(|hook| hook.name), Some("cuCtxCreate_v3"));
    }

    #[test]
    fn legacy_stream_flag_prevails_over_clients_compilation() {
        let found = [(0, false), (2, false), (0, true), (1, true)]
            .map(|(flags, own)| is_per_thread(flags, own));
        assert_eq!(found, [false, true, true, false]);
    }

    #[test]
    fn leaves_other_symbols_to_libc() {
        for name in [c"malloc", c"cublasCreate", c"cu", c"", c"cuNothing"] {
            let found = routed(null_mut(), name.as_ptr(), null_mut());
            assert!(found.is_null(), "{name:?}");
        }
    }
}

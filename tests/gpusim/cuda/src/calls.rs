//! One declaration for each entry point: it yields the exported symbol, its per-thread-stream twin,
//! and the row by which `cuGetProcAddress` finds both.

use crate::exports;

/// One exported symbol.
pub(crate) struct Call {
    /// The function's name without suffix, as `cuGetProcAddress` is asked.
    pub(crate) name: &'static str,
    /// CUDA version, 1000 × major + 10 × minor, from which on the name means this symbol.
    pub(crate) since: u32,
    /// Its default stream is the thread's own.
    pub(crate) per_thread: bool,
    /// Where the loader finds it.
    pub(crate) exported: Address,
    /// The function behind it, which has another address.
    pub(crate) internal: Address,
}

/// The address of a function.
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function, which is the same for every thread and never read through.
unsafe impl Sync for Address {}

/// Declares entry points: `name since symbol(arguments) [, since symbol]... [/ since symbol as flag]
/// { body }`, with the other forms of the same arguments, and the twin whose default stream is the
/// thread's own, in which `flag` is true. The body answers `Answer`.
macro_rules! calls {
    ($table:ident: $(
        $name:ident $since:literal $symbol:ident $args:tt
        $(, $form_since:literal $form:ident)*
        $(/ $twin_since:literal $twin:ident as $flag:ident)? $body:block
    )*) => {
        pub(crate) static $table: &[$crate::calls::Call] = &[$(
            $crate::calls::Call {
                name: stringify!($name),
                since: $since,
                per_thread: false,
                exported: $crate::calls::Address(exported::$symbol as *const ()),
                internal: $crate::calls::Address(internal::$symbol as *const ()),
            },
            $($crate::calls::Call {
                name: stringify!($name),
                since: $form_since,
                per_thread: false,
                exported: $crate::calls::Address(exported::$form as *const ()),
                internal: $crate::calls::Address(internal::$form as *const ()),
            },)*
            $($crate::calls::Call {
                name: stringify!($name),
                since: $twin_since,
                per_thread: true,
                exported: $crate::calls::Address(exported::$twin as *const ()),
                internal: $crate::calls::Address(internal::$twin as *const ()),
            },)?
        )*];
        mod internal {
            use super::*;
            $(
                $crate::calls::calls!(@internal $symbol [$(let $flag = false;)?] $args $body);
                $($crate::calls::calls!(@internal $form [] $args $body);)*
                $($crate::calls::calls!(@internal $twin [let $flag = true;] $args $body);)?
            )*
        }
        mod exported {
            use super::*;
            $(
                $crate::calls::calls!(@export $symbol $args);
                $($crate::calls::calls!(@export $form $args);)*
                $($crate::calls::calls!(@export $twin $args);)?
            )*
        }
    };
    // Not inlined: two functions of the same code may be merged into one.
    (@internal $symbol:ident [$($before:tt)*] ($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        #[inline(never)]
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(super) extern "C" fn $symbol($($argument: $kind),*) -> u32 {
            $crate::ffi::answer(stringify!($symbol), || { $($before)* $body })
        }
    };
    (@export $symbol:ident ($($argument:ident: $kind:ty),* $(,)?)) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's names")]
        #[allow(clippy::used_underscore_binding, reason = "the function behind it may not use it")]
        pub(super) extern "C" fn $symbol($($argument: $kind),*) -> u32 {
            internal::$symbol($($argument),*)
        }
    };
}
pub(crate) use calls;

/// The result of a lookup by name.
pub(crate) enum SymbolLookup {
    Call(&'static Call),
    /// The name exists, from a later version on.
    TooOld,
    Nothing,
}

/// The symbol that `name` means to a client built for CUDA `version`, on a driver of `driver`.
pub(crate) fn find(name: &str, version: u32, driver: u32, per_thread: bool) -> SymbolLookup {
    // From CUDA 12 on one function has two names.
    let (name, version) = match name {
        "cuGraphInstantiateWithFlags" if version >= 11_040 => ("cuGraphInstantiate", 12_000),
        _ => (name, version),
    };
    let rows = exports::tables().flat_map(<[Call]>::iter);
    let named = rows.filter(|call| call.name == name && call.since <= driver);
    let named: Vec<_> = named.collect();
    // A call that has no variant for threads' own streams has one for both.
    let per_thread = per_thread && named.iter().any(|call| call.per_thread);
    let fits = named
        .iter()
        .filter(|call| call.per_thread == per_thread && call.since <= version);
    match fits.max_by_key(|call| call.since) {
        Some(call) => SymbolLookup::Call(call),
        None if named.is_empty() => SymbolLookup::Nothing,
        None => SymbolLookup::TooOld,
    }
}

//! One declaration for each entry point: it yields the exported symbol, its per-thread-stream twin,
//! and the row by which `cuGetProcAddress` finds both.

use crate::exports;
use crate::injection;

/// One exported symbol.
pub(crate) struct Call {
    /// The function's name without suffix, as `cuGetProcAddress` is asked.
    pub(crate) name: &'static str,
    /// CUDA version, 1000 × major + 10 × minor, from which on the name means this symbol.
    pub(crate) since: u32,
    /// Its default stream is the thread's own.
    pub(crate) per_thread: bool,
    /// Where it is.
    pub(crate) address: Address,
}

/// The address of a function.
pub(crate) struct Address(pub(crate) *const ());

// SAFETY: the address of a function, which is the same for every thread and never read through.
unsafe impl Sync for Address {}

/// Declares entry points: `name since symbol(arguments) [/ since symbol as flag] { body }`. The
/// body answers `Answer`; `flag` is true in the twin whose default stream is the thread's own.
macro_rules! calls {
    ($table:ident: $(
        $name:ident $since:literal $symbol:ident $args:tt
        $(/ $twin_since:literal $twin:ident as $flag:ident)? $body:block
    )*) => {
        pub(crate) static $table: &[$crate::calls::Call] = &[$(
            $crate::calls::Call {
                name: stringify!($name),
                since: $since,
                per_thread: false,
                address: $crate::calls::Address($symbol as *const ()),
            },
            $($crate::calls::Call {
                name: stringify!($name),
                since: $twin_since,
                per_thread: true,
                address: $crate::calls::Address($twin as *const ()),
            },)?
        )*];
        $(
            $crate::calls::calls!(@export $symbol [$(let $flag = false;)?] $args $body);
            $($crate::calls::calls!(@export $twin [let $flag = true;] $args $body);)?
        )*
    };
    (@export $symbol:ident [$($before:tt)*] ($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's names")]
        extern "C" fn $symbol($($argument: $kind),*) -> u32 {
            $crate::ffi::answer(stringify!($symbol), || { $($before)* $body })
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
    if injection::is_missing(name) {
        return SymbolLookup::Nothing;
    }
    // From CUDA 12 on one function has two names.
    let (name, version) = match name {
        "cuGraphInstantiateWithFlags" if version >= 11_040 => ("cuGraphInstantiate", 12_000),
        _ => (name, version),
    };
    let rows = exports::tables().flat_map(<[Call]>::iter);
    let named = rows.filter(|call| call.name == name && call.since <= driver);
    let (fits, late): (Vec<_>, Vec<_>) = named.partition(|call| call.since <= version);
    let newest = |wanted: bool| {
        let same = fits.iter().filter(|call| call.per_thread == wanted);
        same.max_by_key(|call| call.since).copied()
    };
    let found = per_thread.then(|| newest(true)).flatten();
    match found.or_else(|| newest(false)) {
        Some(call) => SymbolLookup::Call(call),
        None if late.is_empty() => SymbolLookup::Nothing,
        None => SymbolLookup::TooOld,
    }
}

//! The exported NVML calls, by topic. Every name of a driver is exported; a call that is not
//! simulated answers `NVML_ERROR_NOT_SUPPORTED` (`unsimulated`).

mod compute_instances;
mod errors;
mod events;
mod fabric;
mod fields;
mod gpu_instances;
mod identity;
mod limits;
mod lookup;
mod memory;
mod mig;
mod modes;
mod processes;
mod sensors;
mod system;
mod topology;
mod unsimulated;

/// Declares entry points: `name | other name(arguments) { body }`; the body answers `Answer`.
macro_rules! calls {
    ($($(#[$meta:meta])* $name:ident $(| $other:ident)* ($($arguments:tt)*) $body:block)*) => {$(
        $crate::exports::calls!(
            @each [$(#[$meta])*] [$name $($other)*] ($($arguments)*) $body
        );
    )*};
    (@each $meta:tt [$($name:ident)*] $arguments:tt $body:block) => {
        $($crate::exports::calls!(@one $meta $name $arguments $body);)*
    };
    (@one [$($meta:tt)*] $name:ident ($($argument:ident: $kind:ty),* $(,)?) $body:block) => {
        $($meta)*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::ffi::answer(|| $body)
        }
    };
}
pub(crate) use calls;

/// Calls of the form `name(device, out)`: each reads one value of one GPU.
macro_rules! getters {
    ($($name:ident: $kind:ty = $get:expr;)*) => {
        $crate::exports::calls! {
            $($name(device: nvml_wrapper_sys::bindings::nvmlDevice_t, out: $crate::ffi::Out<$kind>) {
                $crate::library::read(device, &out, $get)
            })*
        }
    };
}
pub(crate) use getters;

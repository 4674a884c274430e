//! Gives the shared library the soname under which every NVML client looks for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rerun-if-changed=build.rs");
}

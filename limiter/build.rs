//! Gives the shared library the name under which the shim libraries need it, and links the
//! compiler's unwinder into it: a slim image has no `libgcc_s.so.1`, and a preloaded library with a
//! missing dependency breaks every program of the container.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvgpu.so");
    // Our own names resolve to our own functions, and the C library's are resolved at their first
    // call: otherwise every program of a container pays for about a hundred lookups at its start.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,lazy");
    // A process that closes the driver's library and opens it again keeps its slot.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    // This machine's compiler has the unwinder for no other processor.
    let [host, target] = ["HOST", "TARGET"].map(|triple| env::var(triple).unwrap_or_default());
    if host.split('-').next() != target.split('-').next() {
        return;
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let asked = Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let Ok(found) = asked else { return };
    let text = String::from_utf8_lossy(&found.stdout);
    let file = Path::new(text.trim());
    // Another compiler brings its own unwinder; the tests check the result.
    if let Some(folder) = file.parent().filter(|_| file.is_absolute()) {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static:+whole-archive=gcc_eh");
    }
}

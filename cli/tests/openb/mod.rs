//! Where the public trace lies, for the tests that use it.

#![allow(clippy::print_stderr, reason = "its absence is said aloud")]

use std::path::PathBuf;

use aliquot_cli::trace::Trace;

/// One of the traces; `None`, said aloud, where the folder is absent.
pub(crate) fn trace(name: &str) -> Option<Trace> {
    let beside = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/openb").into();
    let folder: PathBuf = std::env::var_os("OPENB_DIR").map_or_else(beside, PathBuf::from);
    if !folder.is_dir() {
        eprintln!(
            "OPENB_DIR: {} is absent; nothing was tried",
            folder.display()
        );
        return None;
    }
    let nodes = folder.join("openb_node_list_gpu_node.csv");
    let pods = folder.join(format!("openb_pod_list_{name}.csv"));
    Some(Trace::read(&nodes, &pods).expect("the files of openb"))
}

//! Reads the public trace for the tests that use it.

#![allow(clippy::print_stderr, reason = "its absence is reported")]

use std::path::PathBuf;

use aliquot_cli::trace::Trace;

/// One of the traces; `None`, with a message, where the folder is absent.
pub(crate) fn trace(name: &str) -> Option<Trace> {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/openb").into();
    let folder: PathBuf = std::env::var_os("OPENB_DIR").map_or_else(default, PathBuf::from);
    if !folder.is_dir() {
        eprintln!(
            "OPENB_DIR: {} does not exist; nothing was tested",
            folder.display()
        );
        return None;
    }
    let nodes = folder.join("openb_node_list_gpu_node.csv");
    let pods = folder.join(format!("openb_pod_list_{name}.csv"));
    Some(Trace::read(&nodes, &pods).expect("the files of openb"))
}

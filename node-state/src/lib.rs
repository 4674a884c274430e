//! The files and process data of a node that several programs of Aliquot read or write, each format
//! with its reader and writer.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod accepted;
pub mod allocate_answer;
pub mod cgroup;
pub mod checkpoint;
pub mod container_directory;
pub mod device_id;
pub mod limits;
pub mod monitor_reports;
pub mod mps;
pub mod processes;
pub mod state;

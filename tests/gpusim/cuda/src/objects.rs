//! Handles: small numbers of the process that stand for objects of the driver.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::array::Array;
use crate::codes::ERROR_INVALID_HANDLE;
use crate::exports::event::Event;
use crate::exports::library::{Kernel, Library};
use crate::exports::module::{Function, Module};
use crate::ffi::Answer;
use crate::graph::{ExecutableGraph, Graph};
use crate::streams::Stream;
use crate::types::Handle;

/// All kinds of objects of one process.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) arrays: Table<Array>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) execs: Table<ExecutableGraph>,
}

/// The objects of one kind.
pub(crate) struct Table<T>(RwLock<HashMap<Handle, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::new(HashMap::new()))
    }
}

/// A number that no other object of this process ever had.
pub(crate) fn new_handle() -> Handle {
    // Has the form of an address that cannot be mapped.
    static NEXT: AtomicU64 = AtomicU64::new(0x5A00_0000_0000_0000);
    NEXT.fetch_add(16, Relaxed)
}

impl<T> Table<T> {
    pub(crate) fn add(&self, object: T) -> Handle {
        let handle = new_handle();
        self.0.write().insert(handle, Arc::new(object));
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Answer<Arc<T>> {
        let found = self.0.read().get(&handle).cloned();
        found.ok_or(ERROR_INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Answer<Arc<T>> {
        self.0.write().remove(&handle).ok_or(ERROR_INVALID_HANDLE)
    }

    /// Does something with each.
    pub(crate) fn each(&self, body: impl Fn(&T)) {
        self.0.read().values().for_each(|object| body(object));
    }

    /// Removes all for which `is` is true.
    pub(crate) fn drain(&self, is: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.0.write();
        let out = objects.extract_if(|_, object| is(object));
        out.map(|(_, object)| object).collect()
    }
}

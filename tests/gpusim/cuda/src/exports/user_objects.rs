//! Objects of the program that graphs keep alive: counted references, and a function that is called
//! when none is left. A graph gives its references back when it is destroyed.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::calls::calls;
use crate::codes::{ERROR_INVALID_HANDLE, ERROR_INVALID_VALUE};
use crate::driver::driver;
use crate::ffi::{Answer, Out, as_pointer};
use crate::objects::new_handle;
use crate::types::Handle;

/// An object, and the function that ends it.
#[derive(Clone, Copy)]
struct UserObject {
    data: u64,
    destroy: u64,
    references: u32,
}

/// References of a graph.
struct GraphReference {
    graph: Handle,
    object: Handle,
    count: u32,
}

static OBJECTS: Mutex<BTreeMap<Handle, UserObject>> = Mutex::new(BTreeMap::new());
static OF_GRAPHS: Mutex<Vec<GraphReference>> = Mutex::new(Vec::new());

/// `CU_GRAPH_USER_OBJECT_MOVE`: the graph takes the caller's references.
const MOVE: u32 = 1;

calls! { CALLS:
    cuUserObjectCreate 11030 cuUserObjectCreate(
        object: Out<Handle>, data: u64, destroy: u64, count: u32, _flags: u32,
    ) {
        driver()?;
        if object.is_null() || destroy == 0 || count == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let handle = new_handle();
        OBJECTS.lock().insert(handle, UserObject { data, destroy, references: count });
        object.put(handle)
    }

    cuUserObjectRetain 11030 cuUserObjectRetain(object: Handle, count: u32) {
        driver()?;
        retain(object, count)
    }

    cuUserObjectRelease 11030 cuUserObjectRelease(object: Handle, count: u32) {
        driver()?;
        release(object, count)
    }

    cuGraphRetainUserObject 11030 cuGraphRetainUserObject(
        graph: Handle, object: Handle, count: u32, flags: u32,
    ) {
        driver()?.objects.graphs.get(graph, ERROR_INVALID_HANDLE)?;
        if count == 0 || flags > MOVE {
            return Err(ERROR_INVALID_VALUE);
        }
        if flags != MOVE {
            retain(object, count)?;
        }
        OF_GRAPHS.lock().push(GraphReference { graph, object, count });
        Ok(())
    }

    cuGraphReleaseUserObject 11030 cuGraphReleaseUserObject(
        graph: Handle, object: Handle, count: u32,
    ) {
        driver()?.objects.graphs.get(graph, ERROR_INVALID_HANDLE)?;
        let mut references = OF_GRAPHS.lock();
        let mut known = references.iter_mut();
        let known = known.find(|known| (known.graph, known.object) == (graph, object));
        let known = known.filter(|known| known.count >= count);
        known.ok_or(ERROR_INVALID_VALUE)?.count -= count;
        drop(references);
        release(object, count)
    }
}

/// Gives back the references of a graph that ends.
pub(super) fn release_of_graph(graph: Handle) {
    let mut references = OF_GRAPHS.lock();
    let gone: Vec<GraphReference> = references
        .extract_if(.., |known| known.graph == graph)
        .collect();
    drop(references);
    for known in gone.iter().filter(|known| known.count > 0) {
        // The program may have released more than it had.
        let _ = release(known.object, known.count);
    }
}

fn retain(object: Handle, count: u32) -> Answer {
    let mut objects = OBJECTS.lock();
    let known = objects.get_mut(&object).ok_or(ERROR_INVALID_VALUE)?;
    let references = known.references.checked_add(count);
    known.references = references.ok_or(ERROR_INVALID_VALUE)?;
    Ok(())
}

fn release(object: Handle, count: u32) -> Answer {
    let mut objects = OBJECTS.lock();
    let known = objects.get_mut(&object).ok_or(ERROR_INVALID_VALUE)?;
    let references = known.references.checked_sub(count);
    known.references = references.ok_or(ERROR_INVALID_VALUE)?;
    let known = *known;
    if known.references > 0 {
        return Ok(());
    }
    objects.remove(&object);
    drop(objects);
    std::thread::spawn(move || {
        // SAFETY: the caller gave the address of a function of this type, to be called with this
        // pointer on a thread of the driver's when nothing refers to it.
        unsafe {
            let destroy: extern "C" fn(*mut std::ffi::c_void) =
                std::mem::transmute(as_pointer(known.destroy));
            destroy(as_pointer(known.data));
        }
    });
    Ok(())
}

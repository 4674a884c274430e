//! Contexts: primary ones with a count of their users, explicit ones, and each thread's stack of
//! them. A new context is charged its bytes on the GPU.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::blocks::Blocks;
use crate::codes::{
    ERROR_CONTEXT_IS_DESTROYED, ERROR_DEVICE_UNAVAILABLE, ERROR_INVALID_CONTEXT,
    ERROR_INVALID_DEVICE, ERROR_INVALID_HANDLE, ERROR_OUT_OF_MEMORY,
};
use crate::driver::{Driver, driver};
use crate::ffi::Answer;
use crate::heap::BLOCK;
use crate::objects::new_handle;
use crate::streams::Defaults;
use crate::types::{Device, Handle};

/// `CU_COMPUTEMODE_PROHIBITED` and `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const PROHIBITED: u32 = 2;
const EXCLUSIVE: u32 = 3;

/// A context; never freed, since threads have it on their stacks.
pub(crate) struct Context {
    pub(crate) device: Device,
    pub(crate) gpu_index: usize,
    alive: AtomicBool,
    /// Bytes that it took of the GPU itself.
    bytes: Mutex<u64>,
    pub(crate) blocks: Mutex<Blocks>,
    pub(crate) defaults: Defaults,
    /// `CUlimit` values that were set.
    pub(crate) limits: Mutex<HashMap<u32, usize>>,
    /// Bytes of code and variables of its modules.
    pub(crate) code: Mutex<u64>,
    /// The most local memory of a thread of the kernels that it ran, in bytes, plus 1; 0: none ran.
    launched: AtomicU64,
    first_launch: Mutex<()>,
    /// Bytes of all stacks beyond their default size; local memory is in the same memory.
    stacks: AtomicU64,
    /// Users beside its creator.
    attached: AtomicU64,
    /// Of a green context: the primary context that owns the objects created in it.
    parent: Option<ContextRef>,
}

/// A thread-safe reference to a context; compared by address.
pub(crate) type ContextRef = &'static Context;

impl Context {
    pub(crate) fn handle(&self) -> Handle {
        std::ptr::from_ref(self).expose_provenance() as Handle
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }

    /// The context with which the objects created in this one are destroyed.
    pub(crate) fn owner(&'static self) -> ContextRef {
        self.parent.unwrap_or(self)
    }

    /// Charges or releases the growth of the context, from `old` to `new` bytes beside
    /// its base size.
    pub(crate) fn resize(&self, driver: &Driver, old: u64, new: u64) -> Answer {
        let whole = |bytes: u64| bytes.checked_next_multiple_of(BLOCK);
        let (old, new) = whole(old).zip(whole(new)).ok_or(ERROR_OUT_OF_MEMORY)?;
        let mut bytes = self.bytes.lock();
        if new > old {
            driver.charge(self.gpu_index, new - old)?;
        } else {
            driver.release(self.gpu_index, old - new);
        }
        *bytes = *bytes + new - old;
        Ok(())
    }

    /// Charges what a kernel with so many bytes of local memory a thread takes when it is first
    /// launched: the context grows once, and has the local memory of all threads that can run at
    /// once until it ends.
    pub(crate) fn prepare_launch(&self, driver: &Driver, local_bytes: u32) -> Answer {
        let needed = u64::from(local_bytes) + 1;
        if self.launched.load(Relaxed) >= needed {
            return Ok(());
        }
        let _first = self.first_launch.lock();
        let known = self.launched.load(Relaxed);
        if known >= needed {
            return Ok(());
        }
        let growth = driver.on_gpu(self.gpu_index, |gpu| gpu.context_growth_bytes);
        let growth = growth / driver.context_part();
        let threads = driver.resident_threads(self.gpu_index);
        let stacks = self.stacks.load(Relaxed);
        let size = |launched: u64| {
            launched
                .checked_sub(1)
                .map_or(stacks, |local| growth + stacks.max(local * threads))
        };
        self.resize(driver, size(known), size(needed))?;
        self.launched.store(needed, Relaxed);
        Ok(())
    }

    /// Charges or releases stacks beyond their default size, as far as they do not fit in the local
    /// memory.
    pub(crate) fn resize_stacks(&self, driver: &Driver, bytes: u64) -> Answer {
        let _first = self.first_launch.lock();
        let local = self.launched.load(Relaxed).saturating_sub(1);
        let local = local * driver.resident_threads(self.gpu_index);
        let before = self.stacks.load(Relaxed);
        self.resize(driver, before.max(local), bytes.max(local))?;
        self.stacks.store(bytes, Relaxed);
        Ok(())
    }

    pub(crate) fn attach(&self) {
        self.attached.fetch_add(1, Relaxed);
    }

    /// Removes a user; true for the last one.
    pub(crate) fn detach(&self) -> bool {
        let less = |users: u64| users.checked_sub(1);
        self.attached.fetch_update(Relaxed, Relaxed, less).is_err()
    }

    fn living(&'static self) -> Answer<ContextRef> {
        if self.alive.load(Relaxed) {
            Ok(self)
        } else {
            Err(ERROR_CONTEXT_IS_DESTROYED)
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }
}

thread_local! {
    /// The top of the stack, which every call reads.
    static TOP: Cell<Option<ContextRef>> = const { Cell::new(None) };
    static BELOW: RefCell<Vec<Option<ContextRef>>> = const { RefCell::new(Vec::new()) };
}

#[inline]
pub(crate) fn current() -> Answer<ContextRef> {
    driver()?;
    TOP.get().ok_or(ERROR_INVALID_CONTEXT)?.living()
}

/// The thread's current context, dead or alive, if it has one.
pub(crate) fn top() -> Option<ContextRef> {
    TOP.get()
}

pub(crate) fn set_current(context: Option<ContextRef>) {
    TOP.set(context);
}

pub(crate) fn push(context: ContextRef) {
    BELOW.with_borrow_mut(|below| below.push(TOP.get()));
    TOP.set(Some(context));
}

pub(crate) fn pop() -> Answer<ContextRef> {
    let context = TOP.get().ok_or(ERROR_INVALID_CONTEXT)?;
    TOP.set(BELOW.with_borrow_mut(Vec::pop).flatten());
    Ok(context)
}

pub(crate) struct Contexts {
    primary: Vec<Mutex<Primary>>,
    explicit: Mutex<HashMap<Handle, ContextRef>>,
    /// Green contexts, by the handle that is none of a context.
    green: Mutex<HashMap<Handle, ContextRef>>,
}

#[derive(Default)]
struct Primary {
    users: u64,
    context: Option<ContextRef>,
}

impl Contexts {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            primary: (0..devices).map(|_| Mutex::default()).collect(),
            explicit: Mutex::default(),
            green: Mutex::default(),
        }
    }

    fn primary(&self, device: Device) -> Answer<&Mutex<Primary>> {
        let ordinal = usize::try_from(device).map_err(|_| ERROR_INVALID_DEVICE)?;
        self.primary.get(ordinal).ok_or(ERROR_INVALID_DEVICE)
    }

    /// Retains a device's primary context; the first use creates it.
    pub(crate) fn retain(&self, driver: &Driver, device: Device) -> Answer<ContextRef> {
        let mut primary = self.primary(device)?.lock();
        let known = primary.context;
        let context = if let Some(context) = known.filter(|context| context.is_alive()) {
            context
        } else {
            let made = start(driver, device, known)?;
            primary.context = Some(made);
            made
        };
        primary.users += 1;
        Ok(context)
    }

    /// Releases one use; the last one destroys it.
    pub(crate) fn release(&self, driver: &Driver, device: Device) -> Answer {
        let mut primary = self.primary(device)?.lock();
        if primary.users == 0 {
            return Err(ERROR_INVALID_CONTEXT);
        }
        primary.users -= 1;
        if primary.users == 0 {
            end(driver, primary.context);
        }
        Ok(())
    }

    /// Destroys a primary context whatever its use count.
    pub(crate) fn reset(&self, driver: &Driver, device: Device) -> Answer {
        let mut primary = self.primary(device)?.lock();
        primary.users = 0;
        end(driver, primary.context);
        Ok(())
    }

    /// Whether a primary context is there.
    pub(crate) fn is_primary_active(&self, device: Device) -> Answer<bool> {
        let primary = self.primary(device)?.lock();
        Ok(primary.context.is_some_and(Context::is_alive))
    }

    pub(crate) fn create(&self, driver: &Driver, device: Device) -> Answer<ContextRef> {
        let context = start(driver, device, None)?;
        self.explicit.lock().insert(context.handle(), context);
        Ok(context)
    }

    /// A new green context: a part of the primary one, which it retains.
    pub(crate) fn create_green(&self, driver: &Driver, device: Device) -> Answer<Handle> {
        let parent = self.retain(driver, device)?;
        let context = new(device, parent.gpu_index, Some(parent));
        context.alive.store(true, Relaxed);
        self.explicit.lock().insert(context.handle(), context);
        let handle = new_handle();
        self.green.lock().insert(handle, context);
        Ok(handle)
    }

    pub(crate) fn of_green(&self, handle: Handle) -> Answer<ContextRef> {
        let known = self.green.lock().get(&handle).copied();
        known.ok_or(ERROR_INVALID_HANDLE)
    }

    pub(crate) fn destroy_green(&self, driver: &Driver, handle: Handle) -> Answer {
        let known = self.green.lock().remove(&handle);
        let context = known.ok_or(ERROR_INVALID_HANDLE)?;
        self.explicit.lock().remove(&context.handle());
        context.alive.store(false, Relaxed);
        driver.objects.drop_context(driver, context);
        self.release(driver, context.device)
    }

    pub(crate) fn destroy(&self, driver: &Driver, handle: Handle) -> Answer {
        let known = self.explicit.lock().remove(&handle);
        let context = known.ok_or(ERROR_INVALID_CONTEXT)?;
        end(driver, Some(context));
        if top().is_some_and(|top| top.is(context)) {
            let _ = pop();
        }
        Ok(())
    }

    pub(crate) fn find(&self, handle: Handle) -> Answer<ContextRef> {
        if let Some(context) = self.explicit.lock().get(&handle) {
            return context.living();
        }
        let mut primaries = self.primary.iter().filter_map(|one| one.lock().context);
        let found = primaries.find(|context| context.handle() == handle);
        found.ok_or(ERROR_INVALID_CONTEXT)?.living()
    }
}

fn start(driver: &Driver, device: Device, again: Option<ContextRef>) -> Answer<ContextRef> {
    let gpu_index = driver.gpu_index(device)?;
    let (mode, lost, bytes) = driver.on_gpu(gpu_index, |gpu| {
        (gpu.compute_mode, gpu.lost != 0, gpu.context_bytes)
    });
    let taken = mode == EXCLUSIVE && driver.member().others_have_contexts(gpu_index);
    if lost || mode == PROHIBITED || taken {
        return Err(ERROR_DEVICE_UNAVAILABLE);
    }
    let bytes = bytes / driver.context_part();
    driver.charge(gpu_index, bytes)?;
    driver.contexts_on(gpu_index).fetch_add(1, Relaxed);
    let context = again.unwrap_or_else(|| new(device, gpu_index, None));
    *context.bytes.lock() = bytes;
    *context.code.lock() = 0;
    context.launched.store(0, Relaxed);
    context.stacks.store(0, Relaxed);
    context.limits.lock().clear();
    context.alive.store(true, Relaxed);
    Ok(context)
}

fn new(device: Device, gpu_index: usize, parent: Option<ContextRef>) -> ContextRef {
    Box::leak(Box::new(Context {
        device,
        gpu_index,
        alive: AtomicBool::new(false),
        bytes: Mutex::new(0),
        blocks: Mutex::default(),
        defaults: Defaults::default(),
        limits: Mutex::default(),
        code: Mutex::new(0),
        launched: AtomicU64::new(0),
        first_launch: Mutex::default(),
        stacks: AtomicU64::new(0),
        attached: AtomicU64::new(0),
        parent,
    }))
}

/// Destroys a context, and with it all that it owns.
fn end(driver: &Driver, context: Option<ContextRef>) {
    let Some(context) = context.filter(|context| context.alive.swap(false, Relaxed)) else {
        return;
    };
    driver.heap.drop_context(driver, context);
    driver.objects.drop_context(driver, context);
    driver.pools.settle(driver, context.gpu_index);
    driver.graph_memory.trim(driver, context.gpu_index);
    let bytes = std::mem::take(&mut *context.bytes.lock());
    driver.release(context.gpu_index, bytes);
    driver.contexts_on(context.gpu_index).fetch_sub(1, Relaxed);
}

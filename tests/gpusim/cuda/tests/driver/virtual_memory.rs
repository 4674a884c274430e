//! Virtual memory management: memory is charged until the last handle and mapping are gone.
//!
//! Facts of: CUDA Driver API, Virtual Memory Management.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until, used_mib};

/// `CUmemAllocationProp`: pinned, shareable as a file, on a device.
fn on_device(device: u32) -> [u32; 8] {
    [1, 1, 1, device, 0, 0, 0, 0]
}

fn create(cuda: Cuda, bytes: u64, device: u32) -> Result<u64, u32> {
    let (mut handle, properties) = (0, on_device(device));
    match call!(cuda, cuMemCreate(
        *mut u64: &raw mut handle, u64: bytes, *const [u32; 8]: &raw const properties, u64: 0,
    )) {
        OK => Ok(handle),
        code => Err(code),
    }
}

fn reserve(cuda: Cuda, bytes: u64) -> u64 {
    let mut address = 0;
    ok!(cuda, cuMemAddressReserve(
        *mut u64: &raw mut address, u64: bytes, u64: 0, u64: 0, u64: 0,
    ));
    address
}

fn map(cuda: Cuda, address: u64, bytes: u64, handle: u64) -> u32 {
    call!(cuda, cuMemMap(u64: address, u64: bytes, u64: 0, u64: handle, u64: 0))
}

fn unmap(cuda: Cuda, address: u64, bytes: u64) -> u32 {
    call!(cuda, cuMemUnmap(u64: address, u64: bytes))
}

fn release(cuda: Cuda, handle: u64) -> u32 {
    call!(cuda, cuMemRelease(u64: handle))
}

#[test]
fn memory_stays_charged_until_released_and_unmapped() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::open();
        ok!(cuda, cuInit(u32: 0));
        let address = reserve(cuda, 64 * MIB);
        // No context is needed, and the GPU is the one of the properties.
        let handle = create(cuda, 32 * MIB, 1).unwrap();
        assert_eq!((used_mib(machine, "0"), used_mib(machine, "1")), (0, 32));
        assert_eq!(map(cuda, address, 32 * MIB, handle), OK);
        assert_eq!(map(cuda, address + 32 * MIB, 32 * MIB, handle), OK);
        assert_eq!(release(cuda, handle), OK);
        assert_eq!(release(cuda, handle), INVALID_VALUE);
        assert_eq!(unmap(cuda, address, 32 * MIB), OK);
        assert_eq!(used_mib(machine, "1"), 32);
        let mut again = 0;
        let retain = |again: *mut u64, address: u64| {
            call!(cuda, cuMemRetainAllocationHandle(
                *mut u64: again, u64: address,
            ))
        };
        assert_eq!(retain(&raw mut again, address), INVALID_VALUE);
        assert_eq!(retain(&raw mut again, address + 33 * MIB), OK);
        assert_eq!(unmap(cuda, address + 32 * MIB, 32 * MIB), OK);
        assert_eq!(used_mib(machine, "1"), 32);
        assert_eq!(release(cuda, again), OK);
        assert_eq!(used_mib(machine, "1"), 0);
        ok!(cuda, cuMemAddressFree(u64: address, u64: 64 * MIB));
    });
}

#[test]
fn rejects_impossible_mappings() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::ready();
        assert_eq!(create(cuda, MIB, 0), Err(INVALID_VALUE));
        assert_eq!(create(cuda, 2 * MIB, 2), Err(INVALID_DEVICE));
        assert_eq!(create(cuda, 81_920 * MIB, 0), Err(OUT_OF_MEMORY));
        let (address, handle) = (reserve(cuda, 8 * MIB), create(cuda, 4 * MIB, 0).unwrap());
        for (start, bytes) in [(MIB, 4 * MIB), (0, 2 * MIB), (6 * MIB, 4 * MIB)] {
            assert_eq!(map(cuda, address + start, bytes, handle), INVALID_VALUE);
        }
        assert_eq!(map(cuda, address + 2 * MIB, 4 * MIB, handle), OK);
        for start in [0, 2 * MIB, 4 * MIB] {
            assert_eq!(map(cuda, address + start, 4 * MIB, handle), INVALID_VALUE);
        }
        assert_eq!(unmap(cuda, address, 8 * MIB), INVALID_VALUE);
        assert_eq!(
            call!(cuda, cuMemAddressFree(u64: address, u64: 8 * MIB)),
            INVALID_VALUE
        );
        let access: [u32; 3] = [1, 0, 3];
        let set = |start: u64, bytes: u64| {
            call!(cuda, cuMemSetAccess(
                u64: address + start, u64: bytes, *const [u32; 3]: &raw const access, u64: 1,
            ))
        };
        assert_eq!(
            (set(2 * MIB, 4 * MIB), set(0, 8 * MIB)),
            (OK, INVALID_VALUE)
        );
        ok!(cuda, cuMemsetD8_v2(u64: address + 2 * MIB, u8: 1, u64: 4 * MIB));
        assert_eq!(unmap(cuda, address + 2 * MIB, 4 * MIB), OK);
    });
}

#[test]
fn imported_memory_is_charged_to_its_creator() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let handle = create(cuda, 32 * MIB, 0).unwrap();
        let before = used_mib(machine, "0");
        let (mut file, mut imported) = (0_i32, 0);
        ok!(cuda, cuMemExportToShareableHandle(
            *mut i32: &raw mut file, u64: handle, u32: 1, u64: 0,
        ));
        let number = u64::try_from(file).unwrap();
        let code = call!(cuda, cuMemImportFromShareableHandle(
            *mut u64: &raw mut imported, u64: number, u32: 1,
        ));
        assert_eq!((code, used_mib(machine, "0")), (OK, before));
        let imports = || machine.process_usage("0").unwrap()[0].imported;
        assert_eq!(imports(), 32 * MIB);
        let address = reserve(cuda, 32 * MIB);
        assert_eq!(map(cuda, address, 32 * MIB, imported), OK);
        assert_eq!(
            (release(cuda, imported), unmap(cuda, address, 32 * MIB)),
            (OK, OK)
        );
        assert_eq!((used_mib(machine, "0"), imports()), (before, 0));
    });
}

fn export(cuda: Cuda, handle: u64) -> OwnedFd {
    let mut file = 0_i32;
    ok!(cuda, cuMemExportToShareableHandle(
        *mut i32: &raw mut file, u64: handle, u32: 1, u64: 0,
    ));
    // SAFETY: the driver just made it for us.
    unsafe { OwnedFd::from_raw_fd(file) }
}

fn import(cuda: Cuda, file: &OwnedFd) -> u64 {
    let mut handle = 0;
    let number = u64::try_from(file.as_raw_fd()).unwrap();
    ok!(cuda, cuMemImportFromShareableHandle(*mut u64: &raw mut handle, u64: number, u32: 1));
    handle
}

#[test]
fn exported_memory_stays_until_its_last_descriptor_is_closed() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let free = || cuda.info().0 / MIB;
        let before = free();
        let handles = [(); 2].map(|()| create(cuda, 32 * MIB, 0).unwrap());
        let files = handles.map(|handle| export(cuda, handle));
        // As with a real driver, only the driver tells them apart.
        let [one, other] = files.each_ref().map(|file| {
            let file = std::fs::File::from(file.try_clone().unwrap());
            let found = file.metadata().unwrap();
            (found.dev(), found.ino())
        });
        assert_eq!(one, other);
        for handle in handles {
            assert_eq!(release(cuda, handle), OK);
        }
        assert_eq!(free(), before - 64);
        assert_eq!(used_mib(machine, "0"), 416);
        let [first, second] = files;
        let copy = first.try_clone().unwrap();
        drop(first);
        let imported = import(cuda, &copy);
        drop((second, copy));
        assert_eq!(free(), before - 32);
        assert_eq!(release(cuda, imported), OK);
        assert_eq!(free(), before);
    });
}

#[test]
fn exported_memory_outlives_its_creator() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        if role().is_some() {
            let handle = create(cuda, 32 * MIB, 0).unwrap();
            let _file = export(cuda, handle);
            loop {
                std::thread::park();
            }
        }
        let before = cuda.info().0 / MIB;
        let mut creator = start("creator");
        let folder = format!("/proc/{}/fd", creator.id());
        // A copy of the creator's descriptor, as by `pidfd_getfd`.
        let mut copy = None;
        until("it exports", || {
            let all = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let mut numbers = all.filter_map(|one| one.file_name().to_str()?.parse().ok());
            copy = numbers.find_map(|number| copied(creator.id(), number));
            copy.is_some()
        });
        let file = copy.unwrap();
        let imported = import(cuda, &file);
        creator.kill();
        drop(file);
        assert_eq!(cuda.info().0 / MIB, before - 32);
        assert_eq!(used_mib(machine, "0"), 416);
        assert_eq!(release(cuda, imported), OK);
        assert_eq!(cuda.info().0 / MIB, before);
    });
}

/// A descriptor of another process, if it stands for memory.
fn copied(process: u32, number: i32) -> Option<OwnedFd> {
    let text = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
    text.contains("READ").then_some(())?;
    // SAFETY: plain numbers; each call returns a new descriptor or an error.
    unsafe {
        let open = libc::syscall(libc::SYS_pidfd_open, process, 0);
        let open = OwnedFd::from_raw_fd(i32::try_from(open).ok().filter(|open| *open >= 0)?);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, open.as_raw_fd(), number, 0);
        let copy = i32::try_from(copy).ok().filter(|copy| *copy >= 0)?;
        Some(OwnedFd::from_raw_fd(copy))
    }
}

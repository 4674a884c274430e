//! What the product's driver library reads of processes, on drivers that show less than others.

use aliquot_gpusim::SimulatedMachine;
use aliquot_gpusim::edit::{MIB, compute_process};
use aliquot_gpusim::model::Process;
use aliquot_nvml::{Driver as _, Nvml, Usage as _};

use crate::common::{TWO_A100, on_machine};
use crate::driver::open;

/// The driver, and the UUIDs of its GPUs.
fn opened() -> (Nvml, Vec<String>) {
    let driver = open();
    let gpus = driver.inventory().unwrap().gpus.into_iter();
    let gpus = gpus.map(|gpu| gpu.uuid).collect();
    (driver, gpus)
}

fn switch(machine: &SimulatedMachine, field: &str, value: &str) {
    for gpu in ["0", "1"] {
        machine.set(gpu, &[(field, value)]).unwrap();
    }
}

/// A process id and its percent.
type Sample = (u32, u32);

/// Adds processes that are busy on GPU 0.
fn add_busy(machine: &SimulatedMachine, processes: &[Sample]) {
    for (pid, sm) in processes {
        let process = compute_process(*pid, 100);
        machine
            .add_process("0", Process { sm: *sm, ..process })
            .unwrap();
    }
}

fn samples(driver: &Nvml, gpu: &str) -> Option<Vec<Sample>> {
    let found = driver.process_utilization(gpu, 0).unwrap();
    found.map(|all| all.iter().map(|one| (one.pid, one.busy)).collect())
}

#[test]
fn processes_are_read_alike_on_drivers_with_longer_records() {
    on_machine(TWO_A100, |machine| {
        machine.unload().unwrap();
        machine.load("535.54.03").unwrap();
        let expected: Vec<(u32, Option<u64>)> = (1..40)
            .map(|pid| (pid, Some(u64::from(pid) * MIB)))
            .collect();
        for (pid, bytes) in &expected {
            let mib = bytes.unwrap() / MIB;
            machine
                .add_process("0", compute_process(*pid, mib))
                .unwrap();
        }
        let (driver, gpus) = opened();
        let found = driver.processes(&gpus[0]).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.pid, one.bytes)).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn reads_process_utilization_by_either_call() {
    on_machine(TWO_A100, |machine| {
        let (driver, gpus) = opened();
        let busy = vec![(11, 42), (12, 30)];
        add_busy(machine, &busy);
        for (supported, of_busy, of_idle) in [
            ("ok", Some(busy.clone()), Some(Vec::new())),
            ("legacyNotSupported", Some(busy), Some(Vec::new())),
            ("notSupported", None, None),
        ] {
            switch(machine, "processUtilisation", supported);
            assert_eq!(samples(&driver, &gpus[0]), of_busy, "{supported}");
            assert_eq!(samples(&driver, &gpus[1]), of_idle, "{supported}");
        }
        switch(machine, "processUtilisation", "ok");
        switch(machine, "mig", "on");
        assert_eq!(samples(&driver, &gpus[1]), None, "in MIG mode");
    });
}

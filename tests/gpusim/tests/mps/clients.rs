//! CUDA processes under MPS: concurrency and compute modes.
//!
//! Facts of: Multi-Process Service, Architecture and Appendix: Tools and Interface Reference.

use std::time::Duration;

use aliquot_gpusim::SimulatedMachine;

use crate::client::{Cuda, MIB, OK};
use crate::common::{Started, TWO_A100, name_of, role, run_test, start, start_with, until};
use crate::daemon::Daemon;

const UNAVAILABLE: u32 = 46;

/// A daemon of GPU 0, and clients of it that run the same test in another role.
struct Scene<'a> {
    machine: &'a SimulatedMachine,
    daemon: Daemon,
}

/// Runs `client` in each process that `body` starts.
fn scene<F: FnOnce(&Scene<'_>)>(client: impl FnOnce(&str), body: F) {
    run_test(&name_of::<F>(), TWO_A100, &[], |machine| {
        if let Some(role) = role() {
            return client(&role);
        }
        let daemon = Daemon::started(machine, "a", "0");
        let scene = Scene { machine, daemon };
        body(&scene);
        scene.daemon.answer("quit -t 0");
    });
}

impl Scene<'_> {
    fn client(&self, role: &str) -> Started {
        let pipe = self.daemon.pipe.to_str().unwrap();
        start_with(role, &[("CUDA_MPS_PIPE_DIRECTORY", pipe)])
    }

    fn until_it_runs(&self, client: &Started) {
        let pid = client.id();
        until("the client runs", || {
            let holders = self.machine.process_usage("0").unwrap();
            holders.iter().any(|one| one.pid == pid && one.contexts > 0)
        });
    }

    fn server(&self) -> u32 {
        self.daemon.answer("get_server_list").parse().unwrap()
    }
}

#[test]
fn runs_clients_concurrently_within_their_percentages() {
    let client = |_: &str| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_ms_20");
        let (start, end) = (cuda.event(), cuda.event());
        // Behind a kernel: the time until the next launch is not part of it.
        assert_eq!(cuda.launch(kernel, 0), OK);
        assert_eq!(cuda.record(start, 0), OK);
        for _ in 0..5 {
            assert_eq!(cuda.launch(kernel, 0), OK);
        }
        assert_eq!(cuda.record(end, 0), OK);
        assert_eq!(cuda.synchronize(), OK);
        let took = cuda.elapsed(start, end).unwrap();
        assert!((399.0..440.0).contains(&took), "{took}");
    };
    scene(client, |scene| {
        // Four times 25 percent fill the GPU: no client waits for another.
        scene
            .daemon
            .answer("set_default_active_thread_percentage 25");
        let mut all: Vec<_> = (0..4).map(|_| scene.client("client")).collect();
        all.iter_mut().for_each(Started::finish);
    });
}

#[test]
fn exclusive_gpu_admits_only_clients_of_its_server() {
    let client = |role: &str| {
        if role == "inside" {
            Cuda::ready().stream();
            // It stays until it is killed.
            std::thread::park_timeout(Duration::from_mins(1));
            return;
        }
        let cuda = Cuda::open();
        ok!(cuda, cuInit(u32: 0));
        let mut context = 0_u64;
        let code = call!(cuda, cuDevicePrimaryCtxRetain(*mut u64: &raw mut context, i32: 0));
        assert_eq!(code, UNAVAILABLE);
    };
    scene(client, |scene| {
        let mode = [("computeMode", "exclusiveProcess")];
        scene.machine.set("0", &mode).unwrap();
        let inside = [(); 2].map(|()| scene.client("inside"));
        for one in &inside {
            scene.until_it_runs(one);
        }
        start("outside").finish();
        let (server, pid) = (scene.server(), inside[0].id());
        let list = scene.daemon.answer(&format!("get_client_list {server}"));
        assert!(list.lines().any(|line| line == pid.to_string()), "{list}");
        let holders = scene.machine.process_usage("0").unwrap();
        let of = |pid: u32| holders.iter().find(|one| one.pid == pid).unwrap();
        assert!(of(pid).mps && !of(server).mps);
        // The driver lists the clients and not their server.
        let options = aliquot_nvml::Options {
            library: aliquot_gpusim::place::library_path().unwrap().into(),
            ..aliquot_nvml::Options::default()
        };
        let driver = aliquot_nvml::Nvml::open(options).unwrap();
        let shown = scene.machine.show().unwrap();
        let uuid = shown["gpus"][0]["uuid"].as_str().unwrap();
        let clients = aliquot_nvml::Driver::mps_clients(&driver, uuid).unwrap();
        let found = clients.iter().find(|(client, _)| *client == pid);
        assert_eq!(found, Some(&(pid, 416 / 8 * MIB)), "{clients:?}");
        assert_eq!(clients.len(), 2);
    });
}

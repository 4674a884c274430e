//! What the agent's log says of a cause that lasts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use aliquot_core::Mib;
use aliquot_device_plugin::allocation::context_memory::ContextMemory;
use aliquot_device_plugin::allocation::prepare::Preparer;
use aliquot_device_plugin::allocation::{housekeeping, injection};
use aliquot_device_plugin::metrics::Metrics;
use aliquot_serve::repeated_warnings::LogOnce;
use aliquot_serve::telemetry::{LogFormat, subscriber};
use aliquot_shim::{Architecture, LIBRARIES, build_driver_shim};
use parking_lot::Mutex;

use crate::node::{Node, node_with};

/// Seconds by the clock of the log.
static SECONDS: AtomicU64 = AtomicU64::new(0);

fn now() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + Duration::from_secs(SECONDS.load(Ordering::Relaxed))
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines_with(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        let lines = text.lines().filter(|line| line.contains(part));
        lines.map(str::to_owned).collect()
    }
}

/// Runs housekeeping so many times, a second apart, with a limiter. Returns the published problems.
fn housekeeping(node: &Node, limiter: &Path, runs: usize) -> Vec<String> {
    let installed = injection::install(limiter, &node.dir.path().join("limiter"));
    let preparer = Preparer::new(
        Arc::clone(&node.allocations),
        Some(installed.expect("installed")),
        ContextMemory::Fixed(Mib(512)),
    );
    let metrics = Metrics::default();
    for _ in 0..runs {
        SECONDS.fetch_add(1, Ordering::Relaxed);
        housekeeping::run_once(&preparer, &node.dir.path().join("proc"), &metrics).expect("a run");
    }
    let published = node.allocations.published.get();
    published.housekeeping_problems.iter().cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn housekeeping_logs_each_lasting_cause_once_and_its_end() {
    let place = tempfile::tempdir().expect("tempdir");
    let host = place.path().join("host");
    // Nothing below it can be read, by root either.
    fs::write(&host, "").expect("written");
    let flag = format!("--host-root={}", host.display());
    let mut node = node_with(&[&flag]).connected().await;
    fs::create_dir(node.dir.path().join("proc")).expect("made");
    let library = node.dir.path().join("nvidia/libcuda.so.580.82");
    let machine = Architecture::HERE.expect("a shim library");
    let driver = build_driver_shim(LIBRARIES[0], &["cuInit".to_owned()], machine);
    fs::write(&library, driver).expect("written");
    let limiter = place.path().join("libvgpu.so");
    for file in [&limiter, &limiter.with_file_name("aliquot-hook")] {
        fs::write(file, "ours").expect("written");
    }
    node.run("u1", "GPU-a", 1, "GPU-a::0").await;

    let (log, once) = (Log::default(), LogOnce::new(now));
    let writer = log.clone();
    let lines = subscriber(LogFormat::Json, "info", &once, move || writer.clone());
    tracing::subscriber::with_default(lines.expect("a filter"), || {
        let unreadable = format!(
            "cannot read which calls {} exports: cannot read it: Not a directory (os error 20); programs that are linked in containers find the calls of known drivers",
            library.display()
        );
        assert_eq!(housekeeping(&node, &limiter, 1_000), [&*unreadable]);
        assert_eq!(log.lines_with("Not a directory (os error 20)").len(), 1);

        fs::remove_file(&host).expect("removed");
        fs::create_dir(&host).expect("made");
        let other = "cannot update the files of container main of pod default/u1: ";
        let problems = housekeeping(&node, &limiter, 10);
        assert!(
            problems.len() == 1 && problems[0].starts_with(other),
            "{problems:?}"
        );
        assert_eq!(log.lines_with(other).len(), 1);

        fs::remove_dir(&host).expect("removed");
        std::os::unix::fs::symlink("/", &host).expect("linked");
        assert_eq!(housekeeping(&node, &limiter, 1), [""; 0]);
        SECONDS.fetch_add(600, Ordering::Relaxed);
        once.log_notes();
        let over = log.lines_with("a warning no longer repeats");
        assert_eq!(over.len(), 2, "{over:?}");
        let ended = over.iter().find(|line| line.contains(&unreadable));
        assert!(
            ended.is_some_and(|line| line.contains(r#""times":1000"#)),
            "{over:?}"
        );
    });
}

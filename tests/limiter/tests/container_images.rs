//! What else a container image may bring: another libc, other allocators, sanitizers, libraries that
//! wrap libc's functions.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use aliquot_limiter_tests::scene::{
    LIMITED, OVER_LIMIT, compile, container, each_method, machine, script,
};
use aliquot_limiter_tests::{InjectionMethod, TestContainer, client, limiter, lines};
use aliquot_shim::LIBRARIES;

const SHARE: u64 = 3000;
/// What cargo provides for tests; in the file system of what it builds.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// The library and the hook as they are shipped, the simulated driver, a program.
static BUILT: LazyLock<[PathBuf; 4]> = LazyLock::new(|| {
    let built = script("build_for_old_glibc.sh", &[FOLDER]).into_iter();
    let built: Vec<PathBuf> = built.map(PathBuf::from).collect();
    built.try_into().expect("four paths")
});

/// A folder with these Debian packages, of this machine's release or another.
fn unpack_packages(suite: &str, names: &[&str]) -> PathBuf {
    let folder = script("packages.sh", &[&[suite], names].concat()).pop();
    PathBuf::from(folder.expect("a folder"))
}

/// The path of a file of that name below a folder.
fn find(folder: &Path, name: &str) -> String {
    let output = Command::new("find")
        .arg(folder)
        .args(["-name", name, "-print", "-quit"])
        .output()
        .expect("find");
    lines(&output)
        .pop()
        .unwrap_or_else(|| panic!("no {name} in {}", folder.display()))
}

fn run_in(container: &TestContainer, words: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let mut command = container.command(words);
    // For this command only: the host's own programs set up its file system.
    let output = command
        .envs(env.iter().copied())
        .output()
        .expect("it starts");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output:?}");
    (lines(&output).join("\n"), words)
}

#[test]
fn limits_under_older_and_newer_libc_versions() {
    let own = Command::new("ldd").arg("--version").output().expect("ldd");
    let own = lines(&own)[0].rsplit(' ').next().map(str::to_owned);
    let [library, _hook, driver, program] = &*BUILT;
    let own = format!("version {}.", own.as_deref().expect("a version"));
    let mut others = 0;
    for suite in ["bullseye", "trixie", "sid"] {
        let folder = unpack_packages(suite, &["libc6"]);
        let loader = find(&folder, "ld-linux-x86-64.so.2");
        let libc = find(&folder, "libc.so.6");
        let libc = Path::new(&libc).parent().expect("a folder").display();
        let newer = format!("{libc}/libc.so.6");
        let banner = Command::new(&loader).arg(&newer).output().expect("libc");
        let version = lines(&banner)[0].clone();
        assert!(version.contains("GNU C Library"), "{version}");
        if version.contains(&own) {
            // This machine's own version is tested by every other test.
            continue;
        }
        others += 1;
        each_method(SHARE, |container, method| {
            container.replace_limiter(library).expect("copied");
            container.replace_driver(LIBRARIES[0], driver);
            // The files of the cache are not below the container's own /tmp.
            let path = format!("{libc}:/driver");
            let program = program.display().to_string();
            for way in ["now", "namespace"] {
                let words = [loader.as_str(), "--library-path", &path, &program, way];
                let found = run_in(container, &words, &[]);
                let limited = (format!("{way}: 2"), String::new());
                assert_eq!(found, limited, "{suite} {method:?}");
            }
        });
        // The same without a limiter, which shows that the limiter refuses.
        let (_temp, machine) = machine();
        let bare = container(&machine, InjectionMethod::NoLimiter, SHARE);
        bare.replace_driver(LIBRARIES[0], driver);
        let path = format!("{libc}:/driver");
        let program = program.display().to_string();
        let words = [loader.as_str(), "--library-path", &path, &program, "now"];
        let found = run_in(&bare, &words, &[]).0;
        assert_eq!(found, "now: 0", "{suite}");
    }
    assert!(others >= 2, "{own} is one of them, the others are not");
}

#[test]
fn shipped_hook_runs_without_libc() {
    let [_library, hook, ..] = &*BUILT;
    let host = tempfile::tempdir_in(FOLDER).expect("a folder");
    std::fs::hard_link(hook, host.path().join("hook")).expect("linked");
    let mut chroot = Command::new("/usr/sbin/chroot");
    let output = chroot.arg(host.path()).arg("/hook").output();
    let output = output.expect("chroot");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.starts_with("usage: aliquot-hook"), "{output:?}");
}

#[test]
fn limits_programs_with_other_allocators() {
    let folder = unpack_packages("here", &["libjemalloc2", "libtcmalloc-minimal4"]);
    for name in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let library = find(&folder, name);
        each_method(SHARE, |container, method| {
            let client = client();
            let mut words = vec!["python3", client.as_str()];
            words.extend(OVER_LIMIT);
            let found = run_in(container, &words, &[("LD_PRELOAD", &library)]);
            assert_eq!(
                found,
                (LIMITED.join("\n"), String::new()),
                "{name} {method:?}"
            );
        });
    }
}

#[test]
fn keeps_image_preload_list_under_replacement() {
    let folder = unpack_packages("here", &["libjemalloc2", "libtcmalloc-minimal4"]);
    let library = find(&folder, "libjemalloc.so.2");
    let (_temp, machine) = machine();
    let container = container(&machine, InjectionMethod::Replacement, SHARE);
    container.preload(&library).expect("written");
    let maps = run_in(&container, &["cat", "/proc/self/maps"], &[]).0;
    assert!(maps.contains("libjemalloc"), "{maps}");
    assert_eq!(container.client(&OVER_LIMIT).expect("a client"), LIMITED);
}

#[test]
fn limits_program_with_own_dlsym_by_replacement() {
    let temp = tempfile::tempdir().expect("a folder");
    each_method(SHARE, |container, method| {
        let arguments = ["-rdynamic", "-ldl", "-DOWN_DLSYM"];
        let program = compile(temp.path(), "ways.c", "program", &arguments).expect("a program");
        let found = run_in(container, &[&program, "now"], &[]).0;
        // A preload does not see what the program resolves itself; the host detects it.
        let expected = if method == InjectionMethod::Replacement {
            "now: 2"
        } else {
            "now: 0"
        };
        assert_eq!(found, expected, "{method:?}: not covered any more?");
    });
}

/// A sanitizer, or a library that wraps functions of libc.
struct Interposer<'a> {
    /// The compiler's arguments for the program.
    program: &'a [&'a str],
    /// The program's environment.
    variables: &'a [&'a str],
    /// The wrapping library: how it is compiled, and whether it is loaded before ours, by
    /// `LD_PRELOAD`, or after it, by the image's own list.
    wrapper: Option<(&'a str, Order)>,
    /// What an allocation beyond the limit returns where we are only preloaded.
    when_preloaded: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    BeforeLimiter,
    AfterLimiter,
}

#[test]
fn limits_sanitized_and_wrapped_programs() {
    let temp = tempfile::tempdir().expect("a folder");
    let output = Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output();
    let asan_first = format!("LD_PRELOAD={}", lines(&output.expect("cc"))[0]);
    let asan_first = ["ASAN_OPTIONS=detect_leaks=0", &asan_first];
    let sanitized = |program, variables| Interposer {
        program,
        variables,
        wrapper: None,
        when_preloaded: 2,
    };
    let wrapped = |wrapper, order| Interposer {
        program: &[],
        variables: &[],
        wrapper: Some((wrapper, order)),
        when_preloaded: 2,
    };
    let interposers = [
        sanitized(&["-fsanitize=thread"], &[]),
        sanitized(&["-fsanitize=thread", "-static-libtsan"], &[]),
        sanitized(&["-fsanitize=leak"], &["LSAN_OPTIONS=detect_leaks=0"]),
        sanitized(&["-fsanitize=undefined"], &[]),
        sanitized(
            &["-fsanitize=address", "-static-libasan"],
            &["ASAN_OPTIONS=detect_leaks=0"],
        ),
        sanitized(&["-fsanitize=address"], &asan_first),
        sanitized(
            &["-fsanitize=address"],
            &["ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0"],
        ),
        wrapped("-DWRAP_DLOPEN", Order::BeforeLimiter),
        wrapped("-DWRAP_DLOPEN", Order::AfterLimiter),
        wrapped("-DWRAP_DLVSYM", Order::BeforeLimiter),
        wrapped("-DWRAP_DLVSYM", Order::AfterLimiter),
        wrapped("-DWRAP_DLSYM", Order::AfterLimiter),
        // A preload does not see what a `dlsym` before it answers; the host detects it.
        Interposer {
            when_preloaded: 0,
            ..wrapped("-DWRAP_DLSYM", Order::BeforeLimiter)
        },
    ];
    let wrong = RefCell::new(Vec::new());
    for (index, interposer) in interposers.iter().enumerate() {
        let build = |source: &str, name: &str, flags: &[&str]| {
            let name = format!("{name}-{index}");
            compile(temp.path(), source, &name, &[flags, &["-ldl"]].concat()).expect("compiled")
        };
        let program = build("ways.c", "program", interposer.program);
        let library = interposer.wrapper.map(|(flag, order)| {
            let flags = ["-shared", "-fPIC", flag];
            (build("wrap.c", "wrapper.so", &flags), order)
        });
        for way in ["none", "now"] {
            each_method(SHARE, |container, method| {
                let mut words = vec!["env".to_owned()];
                words.extend(interposer.variables.iter().map(|one| (*one).to_owned()));
                match &library {
                    Some((library, Order::BeforeLimiter)) => {
                        words.push(format!("LD_PRELOAD={library}"));
                    }
                    Some((library, Order::AfterLimiter)) => {
                        container.preload(library).expect("written");
                    }
                    None => {}
                }
                words.extend([program.clone(), way.to_owned()]);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let code = match (way, method) {
                    ("none", _) => "-3".to_owned(),
                    (_, InjectionMethod::Preload) => interposer.when_preloaded.to_string(),
                    _ => "2".to_owned(),
                };
                let output = container.command(&words).output().expect("it starts");
                let text = String::from_utf8_lossy(&output.stderr);
                let found = (output.status.success(), lines(&output).join("\n"), &*text);
                if found != (true, format!("{way}: {code}"), "") {
                    wrong
                        .borrow_mut()
                        .push(format!("{method:?} {words:?} {output:?}"));
                }
            });
        }
    }
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn calls_no_library_before_first_driver_call() {
    let temp = tempfile::tempdir().expect("a folder");
    let output = Command::new("nm")
        .args(["-D", "--undefined-only"])
        .arg(limiter().expect("libvgpu.so"))
        .output()
        .expect("nm");
    // Functions with a version are libc's; the loader's `_r_debug` is no function.
    let imported = lines(&output).into_iter().filter_map(|line| {
        let (name, _version) = line.rsplit_once(' ')?.1.split_once('@')?;
        (name != "_r_debug").then(|| name.to_owned())
    });
    let imported: Vec<String> = imported.collect();
    assert!(imported.iter().any(|name| name == "strlen"), "{imported:?}");
    let traps = imported.iter().map(|name| format!("TRAP({name})\n"));
    let traps = traps.collect::<Vec<_>>().concat();
    std::fs::write(temp.path().join("traps.h"), traps).expect("written");
    let include = format!("-I{}", temp.path().display());
    let flags = ["-rdynamic", "-fno-builtin", "-w", &include, "-ldl"];
    let program = compile(temp.path(), "traps.c", "traps", &flags).expect("a program");
    each_method(SHARE, |container, method| {
        let found = run_in(container, &[&program], &[]);
        assert_eq!(found, ("none: -3".to_owned(), String::new()), "{method:?}");
    });
}

#[test]
fn limits_python_with_all_its_extensions_loaded() {
    let script = "import glob, importlib, os, sys, sysconfig\n\
        folder = os.path.join(sysconfig.get_path('platstdlib'), 'lib-dynload')\n\
        loaded = 0\n\
        for path in sorted(glob.glob(folder + '/*.so')):\n\
        \x20   name = os.path.basename(path).split('.')[0]\n\
        \x20   if 'test' in name or 'tkinter' in name: continue\n\
        \x20   try: importlib.import_module(name); loaded += 1\n\
        \x20   except ImportError: pass\n\
        assert loaded > 20, loaded\n\
        client = sys.argv[1]; sys.argv[:2] = [client]\n\
        exec(open(client).read())";
    each_method(SHARE, |container, method| {
        let client = client();
        let mut words = vec!["python3", "-c", script, client.as_str()];
        words.extend(OVER_LIMIT);
        let found = run_in(container, &words, &[]);
        assert_eq!(found, (LIMITED.join("\n"), String::new()), "{method:?}");
    });
}

//! What a tenant may try, one test for each row of docs/threat-model.md. Each attack is prevented,
//! or detected by the host, which compares the counters with the driver's report of what the
//! container's processes use.

use aliquot_limiter_tests::scene::{
    CONTEXT, FIRST, Inconsistency, LIMITED, MIB, OVER_LIMIT, compile, container, each_method,
    inconsistencies, machine, new_context,
};
use aliquot_limiter_tests::tenant_user::{TENANT_USERS, TenantUser};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, lines};
use aliquot_region::host::CountersReadError;

/// MiB of the container.
const SHARE: u64 = 3000;
/// A client that allocates three times the share, and waits.
const TAKE_COMMANDS: &str = "init alloc,9000 ready hold";
const TAKE_ANSWERS: &[&str] = &["init: 0", "alloc,9000: 0"];

/// What the host finds when such a client with a context of so many MiB bypassed our library.
fn expected_inconsistencies(context: u64) -> [Inconsistency; 2] {
    [
        Inconsistency::Uncounted((9000 + context) * MIB),
        Inconsistency::AboveLimit((9000 + context - SHARE) * MIB),
    ]
}

/// Runs a script that tries to get its client past the limit under this injection method. If the
/// method prevents it, the client must be limited; otherwise the host must detect it.
fn check(method: InjectionMethod, tenant: TenantUser, script: &str, is_prevented: bool) {
    let (_temp, machine) = machine();
    let container = container(&machine, method, SHARE);
    let what = format!("{method:?} {tenant:?} {script}");
    if is_prevented {
        let script = script.replace("COMMANDS", &OVER_LIMIT.join(" "));
        let answers = container.shell_as(tenant, &script).expect(&what);
        assert_eq!(answers, LIMITED, "{what}");
        return;
    }
    let script = script.replace("COMMANDS", TAKE_COMMANDS);
    let mut running = container.start_shell_as(tenant, &script).expect(&what);
    running.answers.retain(|line| !line.starts_with("load,"));
    assert_eq!(
        running.answers, TAKE_ANSWERS,
        "{what}: not covered any more?"
    );
    assert_eq!(
        inconsistencies(&machine, &container, SHARE),
        expected_inconsistencies(new_context()),
        "{what}"
    );
    running.end().expect(&what);
}

#[test]
fn limits_every_kind_of_tenant() {
    let script = format!("exec python3 $client {}", OVER_LIMIT.join(" "));
    for method in INJECTION_METHODS {
        for tenant in TENANT_USERS {
            let (_temp, machine) = machine();
            let container = container(&machine, method, SHARE);
            let answers = container.shell_as(tenant, &script).unwrap();
            assert_eq!(answers, LIMITED, "{method:?} {tenant:?}");
            container.read_only().unwrap();
            let answers = container.shell_as(tenant, &script).unwrap();
            assert_eq!(
                answers, LIMITED,
                "{method:?} {tenant:?}: with a root that is read-only"
            );
            assert_eq!(inconsistencies(&machine, &container, SHARE), []);
        }
    }
}

#[test]
fn keeps_limit_after_exec_empty_environment_and_setsid() {
    // The two variables are the simulator's; a real driver needs none.
    let script = "exec env -i PATH=$PATH LD_LIBRARY_PATH=/driver GPUSIM_STATE=$GPUSIM_STATE \
        setsid --wait sh -c 'exec python3 \"$@\"' sh $client COMMANDS";
    for method in INJECTION_METHODS {
        for tenant in TENANT_USERS {
            check(method, tenant, script, true);
        }
    }
}

#[test]
fn limits_child_created_by_raw_clone() {
    each_method(SHARE, |container, method| {
        // The parent has a slot, but no context, which a child could not use.
        let answers = container
            .client(&[
                "ninit",
                "nmemory",
                "clone,init,alloc/2521,alloc/2520,info",
                "nmemory",
            ])
            .unwrap();
        let mut expected = vec!["ninit: 0", "nmemory: [0, 0] 0 3000"];
        expected.extend(LIMITED);
        expected.push("clone,init,alloc/2521,alloc/2520,info: 0");
        expected.push("nmemory: [0, 0] 0 3000");
        assert_eq!(answers, expected, "{method:?}");
    });
}

#[test]
fn protects_mounted_files_from_tenant() {
    let script = r#"
tries() { if "$@" 2>/dev/null; then echo "done: $*"; fi; }
for file in /.aliquot/limits /.aliquot/lib/libvgpu.so /driver/libcuda.so.1 /etc/ld.so.preload; do
    [ -e $file ] || continue
    tries sh -c "echo more >>$file"
    tries rm -f $file
    tries mv $file $file.gone
    tries truncate -s 0 $file
    tries chmod 777 $file
done
tries mv /.aliquot /gone
tries rm -rf /.aliquot/counters
tries ln -s /etc/passwd /.aliquot/counters/more
tries umount /.aliquot
tries mount -o remount,bind,rw /.aliquot
tries mount -t tmpfs tmpfs /.aliquot
python3 $client COMMANDS"#;
    for method in INJECTION_METHODS {
        for tenant in TENANT_USERS {
            check(method, tenant, script, true);
        }
    }
}

#[test]
fn keeps_replacement_under_patched_loader() {
    let script = r"
loader=$(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* 2>/dev/null | head -n 1)
mkdir -p $GPUSIM_STATE.d
sed 's,/etc/ld.so.preload,/etc/ld.so.nothing,' $loader >$GPUSIM_STATE.d/ld
chmod 755 $GPUSIM_STATE.d/ld
exec $GPUSIM_STATE.d/ld $(readlink -f $(command -v python3)) $client COMMANDS";
    for tenant in TENANT_USERS {
        check(InjectionMethod::Replacement, tenant, script, true);
        check(InjectionMethod::Preload, tenant, script, false);
    }
}

#[test]
fn keeps_replacement_when_preload_list_is_hidden() {
    let script = r#"
exec unshare --user --map-root-user --mount sh -c '
    [ ! -e /etc/ld.so.preload ] || mount --bind /dev/null /etc/ld.so.preload
    exec python3 "$@"' sh $client COMMANDS"#;
    for tenant in TENANT_USERS {
        check(InjectionMethod::Replacement, tenant, script, true);
        check(InjectionMethod::Preload, tenant, script, false);
    }
}

#[test]
fn keeps_replacement_when_mounted_folder_is_moved() {
    // Only root can rename it; the mounts move with it, and what is loaded next does not find them.
    let driver = r"
! mv /driver /gone || export LD_LIBRARY_PATH=/gone
exec python3 $client COMMANDS";
    let list = r"
mv /etc /gone
mkdir /etc
exec python3 $client COMMANDS";
    for tenant in TENANT_USERS {
        check(InjectionMethod::Replacement, tenant, driver, true);
    }
    check(InjectionMethod::Replacement, TenantUser::Root, list, true);
    check(InjectionMethod::Preload, TenantUser::Root, list, false);
}

#[test]
fn preload_limits_real_library_in_place_of_shim() {
    let real = "/.aliquot/lib/libcuda-real.so.1";
    let moved = format!(
        "mv /driver /gone; mkdir /driver; ln -s {real} /driver/libcuda.so.1\n\
         exec python3 $client COMMANDS"
    );
    check(InjectionMethod::Replacement, TenantUser::Root, &moved, true);
    let bound = over_shim(real, "");
    for tenant in TENANT_USERS {
        check(InjectionMethod::Replacement, tenant, &bound, true);
    }
}

/// Mounts `real` over the shim in a user namespace, and whatever `more` does.
fn over_shim(real: &str, more: &str) -> String {
    format!(
        "exec unshare --user --map-root-user --mount sh -c '\n\
         mount --bind {real} /driver/libcuda.so.1\n\
         {more}\n\
         exec python3 \"$@\"' sh $client COMMANDS"
    )
}

#[test]
fn detects_real_library_in_place_of_shim() {
    let real = "/.aliquot/lib/libcuda-real.so.1";
    let bound = over_shim(real, "mount --bind /dev/null /etc/ld.so.preload");
    for tenant in TENANT_USERS {
        check(InjectionMethod::Replacement, tenant, &bound, false);
    }
}

#[test]
fn detects_program_that_uses_gpu_without_library() {
    // The simulator's shared memory stands for the calls to a device node of a real driver.
    let program = env!("CARGO_BIN_EXE_bare-gpu");
    for method in INJECTION_METHODS {
        for tenant in TENANT_USERS {
            check(method, tenant, &format!("exec {program} COMMANDS"), false);
        }
    }
}

#[test]
fn detects_forged_limits_page() {
    let script = r#"
exec unshare --user --map-root-user --mount sh -c '
    cp /.aliquot/limits $GPUSIM_STATE.forged
    printf "\0\0\0\0\100\0\0\0" | dd of=$GPUSIM_STATE.forged bs=1 seek=104 conv=notrunc 2>/dev/null
    mount --bind $GPUSIM_STATE.forged /.aliquot/limits
    exec python3 "$@"' sh $client COMMANDS"#;
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let container = container(&machine, method, SHARE);
        let script = script.replace("COMMANDS", TAKE_COMMANDS);
        let mut running = container.start_shell_as(TenantUser::User, &script).unwrap();
        assert_eq!(running.answers, TAKE_ANSWERS, "{method:?}");
        // Our library still counts; only the limit is not kept.
        assert_eq!(
            inconsistencies(&machine, &container, SHARE),
            expected_inconsistencies(CONTEXT)[1..],
            "{method:?}"
        );
        running.end().unwrap();
    }
}

#[test]
fn detects_real_library_loaded_by_path() {
    // With a dlsym of its own: the preloaded library limits this one too.
    let script = "exec python3 $client load,/.aliquot/lib/libcuda-real.so.1 COMMANDS";
    for tenant in TENANT_USERS {
        check(InjectionMethod::Replacement, tenant, script, false);
    }
}

/// A chroot with a program that looks for the driver; `$1` is what it finds as libcuda.so.1.
const JAIL: &str = r#"
jail=$(dirname $GPUSIM_STATE)/jail
mkdir -p $jail/driver $jail/bin $jail/proc
for needy in $PROGRAM $DRIVER /.aliquot/lib/*; do ldd $needy; done |
    sed -n 's,.*=> \(/[^ ]*\) .*,\1,p; s,^\t\(/[^ ]*\) .*,\1,p' | sort -u |
    while read -r file; do case $file in /.aliquot/*) ;; *) cp --parents -L $file $jail;; esac; done
cp $PROGRAM $jail/bin/program
cp $DRIVER $jail/driver/libcuda.so.1
[ -z "$KEEP" ] || { mkdir -p $jail/.aliquot/lib; cp /.aliquot/lib/* $jail/.aliquot/lib; }
eval "${MORE-}"
for file in $GPUSIM_STATE*; do [ ! -f $file ] || ln -f $file $jail/; done
export GPUSIM_STATE=/$(basename $GPUSIM_STATE)
exec chroot $jail /bin/program now"#;

#[test]
fn refuses_memory_in_root_with_copied_directory() {
    let (temp, machine) = machine();
    let program = compile(temp.path(), "ways.c", "program", &["-ldl"]).unwrap();
    let answers = |more: &str| {
        let container = container(&machine, InjectionMethod::Replacement, SHARE);
        let driver = "/driver/libcuda.so.1";
        let script = format!("PROGRAM={program} DRIVER={driver} KEEP=1 MORE='{more}'\n{JAIL}");
        // As a runtime that may mount.
        let output = container
            .command(&["sh", "-euc", &script])
            .output()
            .unwrap();
        let answers = lines(&output);
        std::fs::remove_dir_all(temp.path().join("jail")).unwrap();
        answers
    };
    let bound = answers("mount --rbind /.aliquot $jail/.aliquot");
    assert_eq!(bound, ["now: 2"]);
    let copied = answers("cp -r /.aliquot/limits /.aliquot/counters $jail/.aliquot");
    assert_eq!(copied, ["now: 1800"]);
}

#[test]
fn refuses_memory_in_chroot_without_limits_page() {
    let (temp, machine) = machine();
    let program = compile(temp.path(), "ways.c", "program", &["-ldl"]).unwrap();
    let jailed = |method: InjectionMethod, driver: &str, keep: &str| {
        let container = container(&machine, method, SHARE);
        let script = format!("PROGRAM={program} DRIVER={driver} KEEP={keep}\n{JAIL}");
        let answers = container.shell_as(TenantUser::Root, &script).unwrap();
        std::fs::remove_dir_all(temp.path().join("jail")).unwrap();
        answers
    };
    let shim = |keep| jailed(InjectionMethod::Replacement, "/driver/libcuda.so.1", keep);
    // The shim alone does not load; with our library, the call is refused without a limits page
    // (800).
    assert_eq!(shim(""), ["now: -1"]);
    assert_eq!(shim("1"), ["now: 1800"]);
    // The real library alone has no limit: it is detected, as by its path. Preloads stay outside.
    for (method, real) in [
        (
            InjectionMethod::Replacement,
            "/.aliquot/lib/libcuda-real.so.1",
        ),
        (InjectionMethod::Preload, "/driver/libcuda.so.1"),
    ] {
        let found = jailed(method, real, "");
        assert_eq!(found, ["now: 0"], "{method:?}: not covered any more?");
    }
}

#[test]
fn detects_forged_counters() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let container = container(&machine, method, SHARE);
        let mut running = container
            .start(&["init", "alloc,2520", "alloc,2", "forge", "alloc,2520"])
            .unwrap();
        assert_eq!(
            running.answers[2..],
            ["alloc,2: 2", "forge: 0", "alloc,2520: 0"]
        );
        let found = inconsistencies(&machine, &container, SHARE);
        let above = Inconsistency::AboveLimit((2 * 2520 + new_context() - SHARE) * MIB);
        assert!(found.contains(&above), "{method:?} {found:?}");
        let uncounted = |one: &Inconsistency| matches!(one, Inconsistency::Uncounted(_));
        assert!(found.iter().any(uncounted), "{method:?} {found:?}");
        running.end().unwrap();
    }
}

#[test]
fn confines_harm_of_truncated_counters_to_tenant() {
    let (_temp, machine) = machine();
    let [victim, neighbour] =
        [SHARE, SHARE].map(|mib| container(&machine, InjectionMethod::Replacement, mib));
    let mut beside = neighbour.start(&["init", "alloc,100"]).unwrap();
    let output = victim
        .client_command(&["init", "alloc,100", "truncate,0", "alloc,100", "alloc,100"])
        .output()
        .unwrap();
    // Truncated pages cannot be written: the kernel kills the tenant's own process.
    assert!(!output.status.success());
    assert_eq!(lines(&output).last().unwrap(), "truncate,0: 0");
    let error = victim.counters_snapshot().unwrap_err();
    assert!(matches!(error, CountersReadError::Size(0)), "{error}");
    let extended = victim.client_command(&["truncate,1099511627776", "init"]);
    let answers = lines(&{ extended }.output().unwrap());
    assert_eq!(answers, ["truncate,1099511627776: 0", "init: 800"]);
    assert!(matches!(
        victim.counters_snapshot().unwrap_err(),
        CountersReadError::Size(..)
    ));
    assert_eq!(
        neighbour.counters_snapshot().unwrap().used(0),
        (100 + CONTEXT) * MIB
    );
    beside.end().unwrap();
    assert_eq!(machine.process_usage(FIRST).unwrap(), []);
}

//! What a tenant may try, each row of docs/threat-model.md: prevented, or seen by the host, who
//! reads the counters and is told by the driver what the container's processes use.

use std::process::Command;

use aliquot_limiter_tests::scene::{CONTEXT, FIRST, MIB, container, doubts, machine};
use aliquot_limiter_tests::tenant::{TENANTS, Tenant};
use aliquot_limiter_tests::{WAYS, Way, client, lines};
use aliquot_region::host::{Doubt, Unreadable};

/// MiB of the container.
const SHARE: u64 = 3000;
/// Above the share by one MiB, and all of it, beside a context.
const PAST: &[&str] = &["init", "alloc,2521", "alloc,2520", "info"];
const HELD: &[&str] = &[
    "init: 0",
    "alloc,2521: 2",
    "alloc,2520: 0",
    "info: 0 0 3000",
];

/// A client that takes three times the share, and waits.
const TAKE: &str = "init alloc,9000 ready hold";
const TAKEN: &[&str] = &["init: 0", "alloc,9000: 0"];

/// What the host finds when such a client left our library.
fn seen() -> [Doubt; 2] {
    let bytes = |mib: u64| mib * MIB;
    [
        Doubt::Uncounted {
            device: 0,
            bytes: bytes(9000 + CONTEXT),
        },
        Doubt::AboveLimit {
            device: 0,
            bytes: bytes(9000 + CONTEXT - SHARE),
        },
    ]
}

/// A script that gets its client past the limit in this way, for the host to see; where the way in
/// withstands it, the client is held.
fn check(way: Way, tenant: Tenant, script: &str, withstands: bool) {
    let (_room, machine) = machine();
    let container = container(&machine, way, SHARE);
    let what = format!("{way:?} {tenant:?} {script}");
    if withstands {
        let script = script.replace("COMMANDS", &PAST.join(" "));
        let said = container.shell_as(tenant, &script).expect(&what);
        assert_eq!(said, HELD, "{what}");
        return;
    }
    let script = script.replace("COMMANDS", TAKE);
    let mut running = container.start_shell_as(tenant, &script).expect(&what);
    assert_eq!(running.answers, TAKEN, "{what}: not covered any more?");
    assert_eq!(doubts(&machine, &container, SHARE), seen(), "{what}");
    running.end().expect(&what);
}

#[test]
fn whoever_the_tenant_is_the_limit_holds() {
    for way in WAYS {
        for tenant in TENANTS {
            let (_room, machine) = machine();
            let container = container(&machine, way, SHARE);
            let said = container.client_as(tenant, PAST).unwrap();
            assert_eq!(said, HELD, "{way:?} {tenant:?}");
            container.read_only().unwrap();
            let said = container.client_as(tenant, PAST).unwrap();
            assert_eq!(
                said, HELD,
                "{way:?} {tenant:?}: with a root that is read-only"
            );
            assert_eq!(doubts(&machine, &container, SHARE), []);
        }
    }
}

#[test]
fn neither_exec_nor_an_empty_environment_nor_a_new_session_lifts_the_limit() {
    // The two variables are the simulator's; a real driver needs none.
    let script = "exec env -i PATH=$PATH LD_LIBRARY_PATH=/driver GPUSIM_STATE=$GPUSIM_STATE \
        setsid --wait sh -c 'exec python3 \"$@\"' sh $client COMMANDS";
    for way in WAYS {
        for tenant in TENANTS {
            check(way, tenant, script, true);
        }
    }
}

#[test]
fn a_child_by_raw_clone_is_limited_like_any_other() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, SHARE);
        // The parent has a slot, but no context, which a child could not use.
        let said = container
            .client(&[
                "ninit",
                "nmemory",
                "clone,init,alloc/2521,alloc/2520,info",
                "nmemory",
            ])
            .unwrap();
        let mut expected = vec!["ninit: 0", "nmemory: [0, 0] 0 3000"];
        expected.extend(HELD);
        expected.push("clone,init,alloc/2521,alloc/2520,info: 0");
        expected.push("nmemory: [0, 0] 0 3000");
        assert_eq!(said, expected, "{way:?}");
    }
}

#[test]
fn what_is_mounted_cannot_be_changed_or_moved_away() {
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
    for way in WAYS {
        for tenant in TENANTS {
            check(way, tenant, script, true);
        }
    }
}

#[test]
fn a_loader_that_was_patched_sheds_a_preload_and_not_a_replacement() {
    let script = r"
loader=$(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* 2>/dev/null | head -n 1)
mkdir -p $GPUSIM_STATE.d
sed 's,/etc/ld.so.preload,/etc/ld.so.nothing,' $loader >$GPUSIM_STATE.d/ld
chmod 755 $GPUSIM_STATE.d/ld
exec $GPUSIM_STATE.d/ld $(readlink -f $(command -v python3)) $client COMMANDS";
    for tenant in TENANTS {
        check(Way::Replacement, tenant, script, true);
        check(Way::Preload, tenant, script, false);
    }
}

#[test]
fn a_file_bound_over_the_list_of_preloads_does_not_harm_a_replacement() {
    let script = r#"
exec unshare --user --map-root-user --mount sh -c '
    [ ! -e /etc/ld.so.preload ] || mount --bind /dev/null /etc/ld.so.preload
    exec python3 "$@"' sh $client COMMANDS"#;
    for tenant in TENANTS {
        check(Way::Replacement, tenant, script, true);
        check(Way::Preload, tenant, script, false);
    }
}

#[test]
fn a_folder_moved_away_with_its_mounts_sheds_a_preload_and_not_a_replacement() {
    // Only root can rename it; the mounts go with it, and what is loaded next does not find them.
    let driver = r"
! mv /driver /gone || export LD_LIBRARY_PATH=/gone
exec python3 $client COMMANDS";
    let list = r"
mv /etc /gone
mkdir /etc
exec python3 $client COMMANDS";
    for tenant in TENANTS {
        check(Way::Replacement, tenant, driver, true);
    }
    check(Way::Replacement, Tenant::Root, list, true);
    check(Way::Preload, Tenant::Root, list, false);
}

#[test]
fn the_real_library_in_the_place_of_its_stand_in_is_seen() {
    let real = "/.aliquot/lib/libcuda-real.so.1";
    let moved = format!(
        "mv /driver /gone; mkdir /driver; ln -s {real} /driver/libcuda.so.1\n\
         exec python3 $client COMMANDS"
    );
    check(Way::Replacement, Tenant::Root, &moved, false);
    let bound = format!(
        "exec unshare --user --map-root-user --mount sh -c '\n\
         mount --bind {real} /driver/libcuda.so.1\n\
         exec python3 \"$@\"' sh $client COMMANDS"
    );
    for tenant in TENANTS {
        check(Way::Replacement, tenant, &bound, false);
    }
}

#[test]
fn a_program_that_speaks_to_the_card_itself_is_seen() {
    // What calls of a device node are for a driver is its shared memory for the simulator.
    let card = env!("CARGO_BIN_EXE_bare-card");
    for way in WAYS {
        for tenant in TENANTS {
            check(way, tenant, &format!("exec {card} COMMANDS"), false);
        }
    }
}

#[test]
fn a_page_bound_over_the_limits_is_seen() {
    let script = r#"
exec unshare --user --map-root-user --mount sh -c '
    cp /.aliquot/limits $GPUSIM_STATE.forged
    printf "\0\0\0\0\100\0\0\0" | dd of=$GPUSIM_STATE.forged bs=1 seek=104 conv=notrunc 2>/dev/null
    mount --bind $GPUSIM_STATE.forged /.aliquot/limits
    exec python3 "$@"' sh $client COMMANDS"#;
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, SHARE);
        let script = script.replace("COMMANDS", TAKE);
        let mut running = container.start_shell_as(Tenant::User, &script).unwrap();
        assert_eq!(running.answers, TAKEN, "{way:?}");
        // Our library counts still: it is the limit that is not kept.
        assert_eq!(doubts(&machine, &container, SHARE), seen()[1..], "{way:?}");
        running.end().unwrap();
    }
}

#[test]
fn the_real_library_by_its_path_is_seen() {
    let script = "exec python3 $client load,/.aliquot/lib/libcuda-real.so.1 COMMANDS";
    for tenant in TENANTS {
        let (_room, machine) = machine();
        let container = container(&machine, Way::Replacement, SHARE);
        let script = script.replace("COMMANDS", TAKE);
        let mut running = container.start_shell_as(tenant, &script).unwrap();
        assert_eq!(running.answers[1..], *TAKEN, "{tenant:?}");
        assert_eq!(doubts(&machine, &container, SHARE), seen(), "{tenant:?}");
        running.end().unwrap();
    }
}

/// A jail with a program that looks for the driver; `$1` is what it finds as libcuda.so.1.
const JAIL: &str = r#"
jail=$(dirname $GPUSIM_STATE)/jail
mkdir -p $jail/driver $jail/bin $jail/proc
for needy in $PROGRAM $DRIVER /.aliquot/lib/*; do ldd $needy; done |
    sed -n 's,.*=> \(/[^ ]*\) .*,\1,p; s,^\t\(/[^ ]*\) .*,\1,p' | sort -u |
    while read -r file; do case $file in /.aliquot/*) ;; *) cp --parents -L $file $jail;; esac; done
cp $PROGRAM $jail/bin/program
cp $DRIVER $jail/driver/libcuda.so.1
[ -z "$KEEP" ] || { mkdir -p $jail/.aliquot/lib; cp /.aliquot/lib/* $jail/.aliquot/lib; }
for file in $GPUSIM_STATE*; do [ ! -f $file ] || ln -f $file $jail/; done
export GPUSIM_STATE=/$(basename $GPUSIM_STATE)
exec chroot $jail /bin/program now"#;

#[test]
fn a_jail_of_ones_own_has_no_limits_page_and_no_memory() {
    let source = client().replace("client.py", "ways.c");
    let (room, machine) = machine();
    let program = room.path().join("program").display().to_string();
    let made = Command::new("cc")
        .args(["-O1", "-o", &program, &source, "-ldl"])
        .status();
    assert!(made.unwrap().success());
    let jailed = |way: Way, driver: &str, keep: &str| {
        let container = container(&machine, way, SHARE);
        let script = format!("PROGRAM={program} DRIVER={driver} KEEP={keep}\n{JAIL}");
        let said = container.shell_as(Tenant::Root, &script).unwrap();
        std::fs::remove_dir_all(room.path().join("jail")).unwrap();
        said
    };
    let stand_in = |keep| jailed(Way::Replacement, "/driver/libcuda.so.1", keep);
    // The stand-in alone does not load; with our library it is refused: no limits page (800).
    assert_eq!(stand_in(""), ["now: -1"]);
    assert_eq!(stand_in("1"), ["now: 1800"]);
    // The real library alone knows no limit: as by its path, this is seen. Preloads stay outside.
    for (way, real) in [
        (Way::Replacement, "/.aliquot/lib/libcuda-real.so.1"),
        (Way::Preload, "/driver/libcuda.so.1"),
    ] {
        let found = jailed(way, real, "");
        assert_eq!(found, ["now: 0"], "{way:?}: not covered any more?");
    }
}

#[test]
fn counters_that_were_forged_are_seen() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, SHARE);
        let mut running = container
            .start(&["init", "alloc,2520", "alloc,2", "forge", "alloc,2520"])
            .unwrap();
        assert_eq!(
            running.answers[2..],
            ["alloc,2: 2", "forge: 0", "alloc,2520: 0"]
        );
        let found = doubts(&machine, &container, SHARE);
        let above = Doubt::AboveLimit {
            device: 0,
            bytes: (2 * 2520 + CONTEXT - SHARE) * MIB,
        };
        assert!(found.contains(&above), "{way:?} {found:?}");
        let uncounted = |one: &Doubt| matches!(one, Doubt::Uncounted { .. });
        assert!(found.iter().any(uncounted), "{way:?} {found:?}");
        running.end().unwrap();
    }
}

#[test]
fn a_tenant_that_cuts_its_counters_harms_itself_and_no_other() {
    let (_room, machine) = machine();
    let [victim, neighbour] = [SHARE, SHARE].map(|mib| container(&machine, Way::Replacement, mib));
    let mut beside = neighbour.start(&["init", "alloc,100"]).unwrap();
    let output = victim
        .client_command(&["init", "alloc,100", "truncate,0", "alloc,100", "alloc,100"])
        .output()
        .unwrap();
    // What is gone cannot be written: the kernel ends the tenant's own process.
    assert!(!output.status.success());
    assert_eq!(lines(&output).last().unwrap(), "truncate,0: 0");
    let said = victim.report().unwrap_err();
    assert!(matches!(said, Unreadable::Size(0)), "{said}");
    let grown = victim.client_command(&["truncate,1099511627776", "init"]);
    let said = lines(&{ grown }.output().unwrap());
    assert_eq!(said, ["truncate,1099511627776: 0", "init: 800"]);
    assert!(matches!(victim.report().unwrap_err(), Unreadable::Size(_)));
    assert_eq!(neighbour.report().unwrap().used(0), (100 + CONTEXT) * MIB);
    beside.end().unwrap();
    assert_eq!(machine.holders(FIRST).unwrap(), []);
}

//! Refuses new connections of some addresses in the kernel.
//!
//! To accept a connection and to close it costs a server 15 microseconds, which a flood multiplies. Not
//! to accept from the whole backlog would lock out everyone else, because the flood fills the backlog.
//! So the listening socket gets a packet filter that drops the packets that open connections of the
//! flooding addresses: they cost the server nothing, and reach no backlog. An honest client of such an
//! address repeats its packet after a second and later again, as TCP does, and is accepted when its
//! address is removed from the filter.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use socket2::{SockFilter, SockRef};
use tokio::net::TcpListener;

/// Addresses at most; the kernel limits a socket's filter to 20 kB, and compares one after the other.
const ADDRESSES: usize = 128;

/// Classic BPF, as `linux/filter.h` and `linux/bpf_common.h` define it.
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets count from the TCP header; from here on, from the IP header.
const IP_HEADER: u32 = 0xfff0_0000;

/// The addresses whose new connections the kernel refuses on one listening socket.
#[derive(Debug, Default)]
pub(crate) struct SynFilter {
    addresses: BTreeSet<Ipv4Addr>,
    unsupported: bool,
}

impl SynFilter {
    pub(crate) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Refuses new connections of this address from now on. IPv6 addresses, more addresses than the
    /// filter has room for, and all addresses on a kernel without filters stay accepted.
    pub(crate) fn insert(&mut self, listener: &TcpListener, address: IpAddr) {
        let IpAddr::V4(address) = address.to_canonical() else {
            return;
        };
        if self.unsupported || self.addresses.len() >= ADDRESSES {
            return;
        }
        if self.addresses.insert(address) {
            self.apply(listener);
        }
    }

    /// Accepts connections again of the addresses that are not to be refused any more.
    pub(crate) fn retain(&mut self, listener: &TcpListener, refuse: impl Fn(IpAddr) -> bool) {
        let before = self.addresses.len();
        self.addresses
            .retain(|address| refuse(IpAddr::V4(*address)));
        if self.addresses.len() < before {
            self.apply(listener);
        }
    }

    fn apply(&mut self, listener: &TcpListener) {
        let socket = SockRef::from(listener);
        let applied = if self.addresses.is_empty() {
            socket.detach_filter()
        } else {
            socket.attach_filter(&program(&self.addresses))
        };
        if let Err(error) = applied {
            tracing::warn!(%error, "cannot filter new connections: those of a flooding address are accepted and closed");
            // An error here means that there was no filter before.
            let _ = socket.detach_filter();
            self.unsupported = true;
            self.addresses.clear();
        }
    }
}

/// Drops IPv4 packets of these addresses that open a connection, and passes all others. Sockets of
/// accepted connections inherit the filter, which concerns none of their packets.
fn program(addresses: &BTreeSet<Ipv4Addr>) -> Vec<SockFilter> {
    let pass = || SockFilter::new(RETURN, 0, 0, u32::MAX);
    let mut program = vec![
        // Of the flags SYN and ACK, only SYN.
        SockFilter::new(LOAD_BYTE, 0, 0, 13),
        SockFilter::new(AND, 0, 0, 0x12),
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, 0x02),
        pass(),
        // IP version 4.
        SockFilter::new(LOAD_BYTE, 0, 0, IP_HEADER),
        SockFilter::new(AND, 0, 0, 0xf0),
        SockFilter::new(JUMP_IF_EQUAL, 1, 0, 0x40),
        pass(),
        // The source address.
        SockFilter::new(LOAD_WORD, 0, 0, IP_HEADER + 12),
    ];
    for address in addresses {
        program.push(SockFilter::new(JUMP_IF_EQUAL, 0, 1, u32::from(*address)));
        program.push(SockFilter::new(RETURN, 0, 0, 0));
    }
    program.push(pass());
    program
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::pin::pin;
    use std::time::Duration;

    use anyhow::{Context as _, Result};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::time::timeout;

    use super::*;

    async fn connect(source: Ipv4Addr, address: SocketAddr) -> Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source.into(), 0))?;
        Ok(socket.connect(address).await?)
    }

    #[tokio::test]
    async fn kernel_refuses_only_new_connections_of_some_addresses() -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let flooding = |number: usize| -> Result<Ipv4Addr> {
            Ok(Ipv4Addr::new(127, 1, 0, u8::try_from(number)?))
        };
        let other = Ipv4Addr::new(127, 2, 0, 0);
        let mut open = connect(flooding(0)?, address).await?;
        let mut filter = SynFilter::default();
        for number in 0..=ADDRESSES {
            filter.insert(&listener, flooding(number)?.into());
        }
        assert!(!filter.is_empty(), "the kernel took no filter");
        for number in [0, ADDRESSES - 1] {
            let connection = connect(flooding(number)?, address);
            let refused = timeout(Duration::from_millis(200), connection).await;
            assert!(refused.is_err(), "{number}: {refused:?}");
        }
        // One address more than there is room for.
        for source in [other, flooding(ADDRESSES)?] {
            let accepted = timeout(Duration::from_secs(30), connect(source, address)).await;
            accepted.with_context(|| source.to_string())??;
        }
        let (mut served, _) = listener.accept().await?;
        open.write_all(b"x").await?;
        assert_eq!(served.read_u8().await?, b'x');

        let mut waiting = pin!(connect(flooding(1)?, address));
        let refused = timeout(Duration::from_millis(200), waiting.as_mut()).await;
        assert!(refused.is_err(), "{refused:?}");
        filter.retain(&listener, |_| false);
        let accepted = timeout(Duration::from_secs(30), waiting).await;
        accepted.context("a repeated packet")??;
        Ok(())
    }
}

//! Limits for each client address: connections, and handshakes and refused requests per second.
//! A client without an accepted token thus costs little, however much it sends, and delays only
//! itself. An address that has as many connections as it may gets new ones only as these end, at the
//! rate of its handshakes; the kernel refuses the others ([`crate::syn_filter`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Connections of one address that are served. Others wait: a client that waits sends nothing.
const SERVED: usize = 32;
/// Connections of one address, with those that wait.
pub(crate) const CONNECTIONS: usize = 256;
/// The same where there are many connections of all addresses: [`CROWDED`]. Files are limited.
const CONNECTIONS_CROWDED: usize = 8;
const CROWDED: usize = 512;
/// Between two charges of one address, on average.
const INTERVAL: Duration = Duration::from_millis(50);
/// How many charges an address may be ahead of that.
const BURST: u32 = 64;
/// Addresses remembered before those without a debt are forgotten.
const REMEMBERED: usize = 1024;

/// The clients' addresses. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    states: Arc<Mutex<States>>,
}

#[derive(Debug, Default)]
struct States {
    peers: HashMap<IpAddr, Peer>,
    /// Connections of all of them.
    connections: usize,
}

#[derive(Debug)]
struct Peer {
    connections: usize,
    served: Arc<Semaphore>,
    /// When everything charged so far would be paid, at one charge for each interval.
    paid_at: Instant,
}

impl States {
    /// How many connections an address may have.
    fn most(&self) -> usize {
        if self.connections < CROWDED {
            CONNECTIONS
        } else {
            CONNECTIONS_CROWDED
        }
    }
}

impl Peer {
    /// Charges once, and returns how long to wait.
    fn charge(&mut self, now: Instant) -> Duration {
        let ahead = self.paid_at.max(now) - now;
        self.paid_at = now + ahead + INTERVAL;
        ahead.saturating_sub(INTERVAL * BURST)
    }
}

/// A connection; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    peers: Peers,
    address: IpAddr,
    /// A permit for each connection that is served.
    pub(crate) served: Arc<Semaphore>,
}

impl Peers {
    /// Counts a new connection, or refuses it.
    pub(crate) fn connect(&self, address: IpAddr, now: Instant) -> Option<PeerConnection> {
        let address = address.to_canonical();
        let mut states = self.states.lock();
        if states.peers.len() >= REMEMBERED {
            let states = &mut states.peers;
            states.retain(|_, peer| peer.connections > 0 || peer.paid_at > now);
        }
        let most = states.most();
        let peer = states.peers.entry(address).or_insert_with(|| Peer {
            connections: 0,
            served: Arc::new(Semaphore::new(SERVED)),
            paid_at: now,
        });
        if peer.connections >= most {
            return None;
        }
        peer.connections += 1;
        let served = Arc::clone(&peer.served);
        states.connections += 1;
        Some(PeerConnection {
            peers: self.clone(),
            address,
            served,
        })
    }

    /// Whether [`Self::connect`] would count one more connection of this address.
    pub(crate) fn has_room(&self, address: IpAddr) -> bool {
        let states = self.states.lock();
        let peer = states.peers.get(&address.to_canonical());
        peer.is_none_or(|peer| peer.connections < states.most())
    }
}

impl PeerConnection {
    /// Charges a handshake, or a request without an accepted token, and returns how long to wait
    /// before it is answered. A connection has one request at a time, so that few wait.
    pub(crate) fn charge(&self, now: Instant) -> Duration {
        let mut states = self.peers.states.lock();
        let peer = states.peers.get_mut(&self.address);
        peer.map_or(Duration::ZERO, |peer| peer.charge(now))
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let mut states = self.peers.states.lock();
        states.connections -= 1;
        if let Some(peer) = states.peers.get_mut(&self.address) {
            peer.connections -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn limits_connections_of_one_address_only() {
        let (peers, now) = (Peers::default(), Instant::now());
        let open: Vec<_> = (0..999).filter_map(|_| peers.connect(FLOOD, now)).collect();
        assert_eq!(open.len(), CONNECTIONS);
        assert!(!peers.has_room(FLOOD));
        assert!(peers.connect(OTHER, now).is_some());
        drop(open);
        assert!(peers.has_room(FLOOD));
        assert!(peers.connect(FLOOD, now).is_some());
    }

    #[test]
    fn many_addresses_leave_connections_to_others() {
        let (peers, now) = (Peers::default(), Instant::now());
        let addresses = (0..20_u32).map(|number| IpAddr::V4(number.into()));
        let open: Vec<_> = addresses
            .flat_map(|address| std::iter::repeat_n(address, 999))
            .filter_map(|address| peers.connect(address, now))
            .collect();
        assert_eq!(open.len(), CROWDED + 18 * CONNECTIONS_CROWDED);
        assert!(peers.connect(OTHER, now).is_some());
    }

    #[test]
    fn delays_refused_requests_to_twenty_a_second() {
        let (peers, now) = (Peers::default(), Instant::now());
        let connection = peers.connect(FLOOD, now).unwrap();
        let waits: Vec<Duration> = (0..85).map(|_| connection.charge(now)).collect();
        let burst = waits.iter().filter(|wait| wait.is_zero()).count();
        assert_eq!(burst, 65);
        assert_eq!(waits[84], Duration::from_secs(1));
        let other = peers.connect(OTHER, now).unwrap();
        assert_eq!(other.charge(now), Duration::ZERO);
    }

    #[test]
    fn forgets_addresses_without_connection_and_debt() {
        let (peers, now) = (Peers::default(), Instant::now());
        for number in 0..5000_u32 {
            let later = now + Duration::from_secs(number.into());
            drop(peers.connect(IpAddr::V4(number.into()), later));
        }
        assert!(peers.states.lock().peers.len() <= REMEMBERED);
    }
}

//! What a call may take: the card of its context, with the limit on it.
//!
//! Fed by: [`crate::process`], the current context. Must not: let a call pass that takes memory of
//! a card that the seat has no share of.

use crate::clock::{self, PATIENCE};
use crate::context;
use crate::ffi::{Code, Device, Handle, NOT_PERMITTED, OUT_OF_MEMORY, Out, SUCCESS};
use crate::ledger::Entry;
use crate::log;
use crate::process::{self, Process};
use crate::table::call;

/// A card, as this process uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) process: &'static Process,
    pub(crate) card: usize,
    /// The current context; 0 where none matters.
    pub(crate) context: Handle,
}

impl Account {
    /// That of the current context. `None`: nothing is to be counted, because the container is not
    /// limited, or because there is no context and the driver will refuse.
    pub(crate) fn of_current() -> Result<Option<Self>, Code> {
        let process = process::required()?;
        if process.is_uncontrolled() {
            return Ok(None);
        }
        let mut context = 0;
        if call::cuCtxGetCurrent(Out::to(&mut context)) != SUCCESS || context == 0 {
            return Ok(None);
        }
        Self::of_context(process, context).map(Some)
    }

    /// That of the context in which work of a stream runs, whatever is current, and its device.
    /// `None` as for the current one.
    pub(crate) fn of_stream(stream: Handle) -> Result<Option<(Self, Device)>, Code> {
        let process = process::required()?;
        let context = context::of_stream(stream);
        if process.is_uncontrolled() || context == 0 {
            return Ok(None);
        }
        let account = Self::of_context(process, context)?;
        // It is known by now.
        let device = context::device_of(process, context).ok_or(NOT_PERMITTED)?;
        Ok(Some((account, device)))
    }

    fn of_context(process: &'static Process, context: Handle) -> Result<Self, Code> {
        let card = context::card_of(process, context)?;
        let context = process.contexts.owner(context);
        Ok(Self {
            process,
            card,
            context,
        })
    }

    /// That of a device, whatever is current.
    pub(crate) fn of_device(device: i32) -> Result<Option<Self>, Code> {
        let process = process::required()?;
        if process.is_uncontrolled() {
            return Ok(None);
        }
        let Some(card) = process.card(device)? else {
            log::line(
                log::ERROR,
                format_args!("device {device} is not of this container"),
            );
            return Err(NOT_PERMITTED);
        };
        Ok(Some(Self {
            process,
            card,
            context: 0,
        }))
    }

    /// Takes `bytes` of the card itself for what `call` makes, or says that there are not as many.
    /// Dead processes are looked for first.
    pub(crate) fn reserve(&self, call: &str, bytes: u64) -> Result<(), Code> {
        if self.takes(bytes, self.on_card()) {
            return Ok(());
        }
        self.settle_all();
        if self.takes(bytes, self.on_card()) {
            return Ok(());
        }
        Err(self.refuse(call, bytes))
    }

    /// Takes `bytes` that may lie on the host; whether they must, because the container's part of
    /// the card is used.
    pub(crate) fn reserve_anywhere(&self, call: &str, bytes: u64) -> Result<bool, Code> {
        let (here, all) = (self.on_card(), self.process.limit(self.card));
        if self.takes(bytes, here) {
            return Ok(false);
        }
        // What pools gave back and the dead had is free on the card.
        self.settle_all();
        if self.takes(bytes, here) {
            return Ok(false);
        }
        if here < all && self.takes(bytes, all) {
            return Ok(true);
        }
        Err(self.refuse(call, bytes))
    }

    /// What `reserve` takes: at once, or after what others freed and the dead had was given back, and
    /// when what other threads take meanwhile is known. It is told whether this is its first try,
    /// and says, where there is no room, whether other threads are at it. `None`: there is no room.
    pub(crate) fn room<T>(&self, mut reserve: impl FnMut(bool) -> Result<T, bool>) -> Option<T> {
        let end = clock::now() + PATIENCE;
        let (mut first, mut alone) = (true, false);
        loop {
            let others = match reserve(first) {
                Ok(taken) => return Some(taken),
                Err(others) => others,
            };
            if alone && !others || clock::now() >= end {
                return None;
            }
            if others && !first {
                clock::rest();
            }
            self.settle_all();
            (first, alone) = (false, !others);
        }
    }

    /// Takes `bytes` if no more than `limit` are in use then, by the figures as they are.
    pub(crate) fn takes(&self, bytes: u64, limit: u64) -> bool {
        let seat = &self.process.seat;
        seat.reserve(self.card, bytes, limit).is_ok()
    }

    /// The most that may lie on the card itself: of a seat that was promised more than its part of
    /// the card, that part.
    pub(crate) fn on_card(&self) -> u64 {
        let limit = self.process.limit(self.card);
        if self.process.is_scaled() {
            limit.min(self.process.limits.physical(self.card))
        } else {
            limit
        }
    }

    /// Says why `call` gets no `bytes`: what managed memory could not serve is named.
    pub(crate) fn refuse(&self, call: &str, bytes: u64) -> Code {
        let (process, here) = (self.process, self.on_card());
        process.seat.note_refusal(self.card);
        let (used, limit) = (process.seat.used(self.card), process.limit(self.card));
        if here < limit && used.saturating_add(bytes) <= limit {
            log::line(
                log::ERROR,
                format_args!(
                    "{call}: {bytes} bytes must lie on the card, and this container has {} MiB of it",
                    here >> 20
                ),
            );
        } else if here < limit {
            log::line(
                log::DEBUG,
                format_args!(
                    "{call}: refused {bytes} bytes: {used} of {limit} in use, {} MiB of the card and {} MiB of the host",
                    here >> 20,
                    (limit - here) >> 20
                ),
            );
        } else {
            log::line(
                log::DEBUG,
                format_args!("{call}: refused {bytes} bytes: {used} of {limit} in use"),
            );
        }
        OUT_OF_MEMORY
    }

    /// Looks what pools gave back and what the dead had.
    pub(crate) fn settle_all(&self) {
        let process = self.process;
        process.leaving.look(process);
        process.pools.look();
        process.graphs.look(process);
        // An error leaves the totals too high: no more is given than there is.
        let _ = process.seat.settle(process.limits.devices());
    }

    /// Gives `bytes` back.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes > 0 {
            self.process.seat.release(self.card, bytes);
        }
    }

    /// Turns what was `reserved` into what an allocation costs.
    pub(crate) fn settle(&self, reserved: u64, cost: u64) {
        match cost.checked_sub(reserved) {
            Some(0) => {}
            Some(more) => self.process.seat.charge(self.card, more),
            None => self.release(reserved - cost),
        }
    }

    /// An entry of the ledger for something of this size here.
    pub(crate) fn entry(&self, size: u64, by_blocks: bool) -> Entry {
        Entry {
            size,
            card: self.card,
            context: self.context,
            by_blocks,
        }
    }
}

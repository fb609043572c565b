//! The state of a group from the view of one rank: signs of life of the other ranks, and the end of
//! the group.
//!
//! Each rank sends a heartbeat to each other rank every second. A rank from which no message
//! arrives for [`SILENCE`] is considered lost, and the group ends. All functions take the current
//! time as an argument, so that tests need not wait.

use std::time::Duration;

use crate::TransportError;
use crate::control::Control;
use crate::link::{Channel, Link};
use crate::sync::Instant;

/// Time between two heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time without messages after which a rank is considered lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(8);
/// Additional time for each lower rank that also watches the silent one, but at most [`LAST`]. With
/// this delay, the lowest rank reports the loss first and informs the others. So there is only one
/// report.
const PRECEDENCE: Duration = Duration::from_millis(500);
/// Max additional time. All ranks must end within 10 seconds of a failure.
const LAST: Duration = Duration::from_secs(1);
/// Time between two calls of [`Membership::update`] after which this process must have been
/// suspended. After a suspension, it cannot know whether the other ranks were silent.
pub(crate) const SUSPENDED: Duration = Duration::from_secs(3);
/// Max number of control messages per update. With this limit, a rank that sends many messages
/// cannot stall this one.
const MESSAGES: u32 = 256;

/// A rank of the group, which may be this one.
#[derive(Debug)]
struct Member {
    /// Time when its last message arrived.
    heard: Instant,
    /// Whether the rank has left the group.
    has_left: bool,
}

/// The ranks of a group, and the end of the group.
#[derive(Debug)]
pub(crate) struct Membership {
    members: Vec<Member>,
    /// Time when this rank last sent a heartbeat.
    sent: Option<Instant>,
    /// Time of the last update.
    updated: Instant,
    /// Whether this rank has left the group.
    leaves: bool,
    /// The reason why all exchanges fail.
    end: Option<TransportError>,
    /// Whether the rank that ended the group asks rank 0 to report the reason.
    needs_report: bool,
}

impl Membership {
    /// Returns a group in which all ranks are alive.
    pub fn new(ranks: u32, now: Instant) -> Membership {
        let members = (0..ranks).map(|_| Member { heard: now, has_left: false }).collect();
        Membership { members, sent: None, updated: now, leaves: false, end: None, needs_report: false }
    }

    /// Returns the reason why the group ended.
    pub fn end(&self) -> Option<&TransportError> {
        self.end.as_ref()
    }

    /// Returns whether the rank that ended the group asks rank 0 to report the reason.
    pub fn needs_report(&self) -> bool {
        self.needs_report
    }

    /// Reads control messages after the end of the group. Returns whether rank 0 has also ended it.
    pub fn has_rank_0_ended(&mut self, link: &mut dyn Link, now: Instant) -> bool {
        // The end caused by rank 0 may have arrived before this rank failed.
        let is_of_rank_0 = |end: &TransportError| matches!(end, TransportError::Ended { by: 0, .. });
        self.end.as_ref().is_some_and(is_of_rank_0) || self.read_signs(link, now).is_err_and(|end| is_of_rank_0(&end))
    }

    /// Sets the reason why the group ended, unless a reason is already set.
    pub fn set_end(&mut self, error: TransportError) {
        self.end.get_or_insert(error);
    }

    /// Records that a message of a rank has arrived.
    pub fn heard(&mut self, from: u32, now: Instant) {
        if let Some(member) = self.members.get_mut(from as usize) {
            member.heard = now;
        }
    }

    /// Returns whether a rank has sent a message recently and so will probably answer soon.
    pub fn is_near(&self, rank: u32, now: Instant) -> bool {
        let member = self.members.get(rank as usize);
        member.is_some_and(|member| now.saturating_duration_since(member.heard) < HEARTBEAT.saturating_mul(3))
    }

    /// Returns the loss of a rank that another rank has reported: that rank ended the group, and
    /// this one has received nothing from the lost rank lately, either.
    pub fn reported_loss(&self, rank: u32, now: Instant) -> Option<TransportError> {
        if self.needs_report || !matches!(self.end, Some(TransportError::Ended { .. })) {
            return None;
        }
        let is_lost = |(peer, member): &(u32, &Member)| !member.has_left && !self.is_near(*peer, now);
        self.others(rank).find(is_lost).map(|(peer, member)| {
            let seconds = now.saturating_duration_since(member.heard).as_secs();
            TransportError::Silent { rank, peer, seconds }
        })
    }

    /// Returns whether a rank has left the group so long ago that its last messages had time to
    /// arrive.
    pub fn left_before(&self, rank: u32, now: Instant) -> bool {
        let member = self.members.get(rank as usize);
        member.is_some_and(|member| member.has_left && now.saturating_duration_since(member.heard) >= HEARTBEAT)
    }

    /// Returns whether all other ranks have left the group.
    pub fn all_left(&self, rank: u32) -> bool {
        self.others(rank).all(|(_, member)| member.has_left)
    }

    fn others(&self, rank: u32) -> impl Iterator<Item = (u32, &Member)> {
        (0..).zip(&self.members).filter(move |(other, _)| *other != rank)
    }

    /// Sends a control message to all other ranks. Ranks that have left the group wait until all
    /// have left, so they also get it.
    ///
    /// # Errors
    /// Fails if the link fails.
    pub fn send(&self, link: &mut dyn Link, message: &Control) -> Result<(), TransportError> {
        let (rank, bytes) = (link.rank(), message.encode());
        for (other, _) in self.others(rank) {
            link.send(other, Channel::Control, &bytes, &[]).map_err(|error| error.of_rank(rank))?;
        }
        Ok(())
    }

    /// Leaves the group. This sends the last control message of this rank. Its messages on the
    /// other channel may arrive later ([`Membership::left_before`]).
    ///
    /// # Errors
    /// Fails if the link fails.
    pub fn leave(&mut self, link: &mut dyn Link) -> Result<(), TransportError> {
        self.leaves = true;
        self.send(link, &Control::Leave)
    }

    /// Sends a heartbeat if one is due, reads control messages, and checks for silent ranks.
    /// [`Membership::end`] then returns the end, if there is one.
    pub fn update(&mut self, link: &mut dyn Link, now: Instant) {
        if self.end.is_none()
            && let Err(error) = self.exchange_signs(link, now)
        {
            self.set_end(error);
        }
    }

    fn exchange_signs(&mut self, link: &mut dyn Link, now: Instant) -> Result<(), TransportError> {
        let pause = now.saturating_duration_since(self.updated);
        if pause > SUSPENDED {
            self.members.iter_mut().for_each(|member| member.heard += pause);
        }
        self.updated = now;
        if !self.leaves && self.sent.is_none_or(|sent| now.saturating_duration_since(sent) >= HEARTBEAT) {
            self.sent = Some(now);
            self.send(link, &Control::Heartbeat)?;
        }
        self.read_signs(link, now)?;
        self.check_silence(link.rank(), now)
    }

    fn read_signs(&mut self, link: &mut dyn Link, now: Instant) -> Result<(), TransportError> {
        let rank = link.rank();
        for _ in 0..MESSAGES {
            let mut message = None;
            let mut take = |from, bytes: &[u8]| message = Some((from, Control::decode(bytes)));
            link.receive(None, Channel::Control, Control::LIMIT, &mut take).map_err(|error| error.of_rank(rank))?;
            let Some((from, message)) = message else { break };
            self.heard(from, now);
            match message {
                Some(Control::Heartbeat) => {}
                Some(Control::End(reason)) => return Err(TransportError::Ended { by: from, reason }),
                Some(Control::Failure(reason)) => {
                    self.needs_report = true;
                    return Err(TransportError::Ended { by: from, reason });
                }
                Some(Control::Leave) => {
                    if let Some(member) = self.members.get_mut(from as usize) {
                        member.has_left = true;
                    }
                }
                None => return Err(TransportError::Control { rank, from }),
            }
        }
        Ok(())
    }

    fn check_silence(&self, rank: u32, now: Instant) -> Result<(), TransportError> {
        let silence = |member: &Member| now.saturating_duration_since(member.heard);
        let is_silent = |member: &Member| !member.has_left && silence(member) >= SILENCE;
        let watching = self.others(rank).filter(|(other, member)| *other < rank && !is_silent(member)).count();
        let patience = SILENCE + PRECEDENCE.saturating_mul(u32::try_from(watching).unwrap_or(u32::MAX)).min(LAST);
        let lost = self.others(rank).find(|(_, member)| !member.has_left && silence(member) >= patience);
        lost.map_or(Ok(()), |(peer, member)| {
            Err(TransportError::Silent { rank, peer, seconds: silence(member).as_secs() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryLink, links};

    /// A rank of a group in a test that sets the time.
    struct Rank {
        link: MemoryLink,
        membership: Membership,
    }

    fn group(ranks: u32, begin: Instant) -> Vec<Rank> {
        let membership = || Membership::new(ranks, begin);
        links(ranks).into_iter().map(|link| Rank { link, membership: membership() }).collect()
    }

    /// Updates the given ranks once per second. Returns the end of each rank with the second in
    /// which it ended.
    fn run(group: &mut [Rank], living: &[usize], begin: Instant, seconds: u64) -> Vec<(usize, f64, TransportError)> {
        let mut ends = Vec::new();
        for step in 0..seconds * 4 {
            let now = begin + Duration::from_millis(250 * step);
            for rank in living {
                let Rank { link, membership } = &mut group[*rank];
                let had_ended = membership.end().is_some();
                membership.update(link, now);
                if let Some(error) = membership.end().filter(|_| !had_ended).cloned() {
                    if matches!(error, TransportError::Silent { .. }) {
                        membership.send(link, &Control::End(error.to_string())).unwrap();
                    }
                    ends.push((*rank, step as f64 / 4.0, error));
                }
            }
        }
        ends
    }

    #[test]
    fn ranks_with_heartbeats_wait_for_hours() {
        let begin = Instant::now();
        let mut group = group(3, begin);
        assert_eq!(run(&mut group, &[0, 1, 2], begin, 7200), []);
    }

    #[test]
    fn the_lowest_living_rank_reports_a_silent_one() {
        let begin = Instant::now();
        for (silent, living) in [(0, [1, 2, 3]), (2, [0, 1, 3]), (3, [0, 1, 2])] {
            let mut group = group(4, begin);
            let ends = run(&mut group, &living, begin, 12);
            assert_eq!(ends.len(), 3);
            let reporter = living[0] as u32;
            assert_eq!(ends[0].2, TransportError::Silent { rank: reporter, peer: silent, seconds: 8 });
            for (_, second, end) in &ends[1..] {
                assert!(*second < 9.0);
                assert!(matches!(end, TransportError::Ended { by, .. } if *by == reporter), "{end}");
            }
        }
    }

    #[test]
    fn ranks_of_one_side_of_a_cut_link_know_that_a_loss_was_reported() {
        let begin = Instant::now();
        let mut group = group(4, begin);
        let ends = run(&mut group, &[2, 3], begin, 12);
        assert!(matches!(ends[0].2, TransportError::Silent { rank: 2, peer: 0, .. }));
        assert!(matches!(ends[1].2, TransportError::Ended { by: 2, .. }));
        let after = begin + SILENCE + HEARTBEAT;
        assert_eq!(group[2].membership.reported_loss(2, after), None);
        let loss = group[3].membership.reported_loss(3, after);
        assert_eq!(loss, Some(TransportError::Silent { rank: 3, peer: 0, seconds: 9 }));
    }

    #[test]
    fn an_end_without_a_silent_rank_is_no_loss() {
        let begin = Instant::now();
        for message in [Control::End("the drive is full".into()), Control::Failure("the drive is full".into())] {
            let mut group = group(2, begin);
            let Rank { link, membership } = &mut group[1];
            membership.send(link, &message).unwrap();
            let ends = run(&mut group, &[0], begin, 1);
            assert!(matches!(ends[0].2, TransportError::Ended { by: 1, .. }));
            assert_eq!(group[0].membership.reported_loss(0, begin + HEARTBEAT), None);
            // A rank that fails, and then waits for the report of another one, is silent, too.
            let is_reported = matches!(message, Control::End(_));
            assert_eq!(group[0].membership.reported_loss(0, begin + SILENCE).is_some(), is_reported);
        }
    }

    #[test]
    fn a_rank_that_was_suspended_does_not_accuse_the_others() {
        let begin = Instant::now();
        let mut group = group(2, begin);
        assert_eq!(run(&mut group, &[0, 1], begin, 2), []);
        // Both ranks are suspended for an hour. At the first update after it, no message of that
        // hour has arrived.
        let later = begin + Duration::from_secs(3600);
        let Rank { link, membership } = &mut group[0];
        membership.update(link, later);
        assert_eq!(membership.end(), None);
        assert_eq!(run(&mut group, &[0, 1], later, 20), []);
        // A rank that stays silent from now on is lost.
        assert_eq!(run(&mut group, &[0], later + Duration::from_secs(20), 12).len(), 1);
    }

    #[test]
    fn a_rank_that_left_is_not_lost() {
        let begin = Instant::now();
        let mut group = group(2, begin);
        let Rank { link, membership } = &mut group[1];
        membership.leave(link).unwrap();
        assert_eq!(run(&mut group, &[0, 1], begin, 20), []);
        assert!(group[0].membership.all_left(0));
        // The last message of the rank was the one with which it left the group.
        assert!(!group[0].link.receive(None, Channel::Control, 1, &mut |_, _| {}).unwrap());
    }

    #[test]
    fn malformed_and_oversized_control_messages_end_the_group() {
        let begin = Instant::now();
        for (bytes, is_expected) in [
            (vec![9], (|e| matches!(e, TransportError::Control { rank: 0, from: 1 })) as fn(&TransportError) -> bool),
            (vec![2; Control::LIMIT + 1], |e| matches!(e, TransportError::Link { rank: 0, .. })),
        ] {
            let mut group = group(2, begin);
            group[1].link.send(0, Channel::Control, &bytes, &[]).unwrap();
            let ends = run(&mut group, &[0], begin, 1);
            assert!(is_expected(&ends[0].2), "{}", ends[0].2);
        }
    }
}

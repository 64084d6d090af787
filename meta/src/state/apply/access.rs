//! Users, access rules and tenants.

use super::{Outcome, remove, valid};
use crate::command::Reply;
use crate::record::{RuleRecord, TenantRecord, UserRecord};
use crate::state::{Effect, Tx, keys};

pub(super) fn put_user(tx: &mut Tx<'_>, user: &UserRecord, effects: &mut Vec<Effect>) -> Outcome {
    valid::name("the user's name", &user.name)?;
    valid::text("the tenant's name", &user.tenant)?;
    tx.save(keys::user(&user.name), user);
    effects.push(Effect::UsersChanged);
    Ok(Reply::Done)
}

pub(super) fn remove_user(tx: &mut Tx<'_>, name: &str, effects: &mut Vec<Effect>) -> Outcome {
    valid::name("the user's name", name)?;
    remove(tx, keys::user(name))?;
    effects.push(Effect::UsersChanged);
    Ok(Reply::Done)
}

pub(super) fn put_rule(tx: &mut Tx<'_>, rule: &RuleRecord, effects: &mut Vec<Effect>) -> Outcome {
    valid::filter(&rule.filter)?;
    if let Some(user) = &rule.user {
        valid::name("the user's name", user)?;
    }
    tx.save(keys::rule(rule.id), rule);
    effects.push(Effect::RulesChanged);
    Ok(Reply::Done)
}

pub(super) fn remove_rule(tx: &mut Tx<'_>, id: u32, effects: &mut Vec<Effect>) -> Outcome {
    remove(tx, keys::rule(id))?;
    effects.push(Effect::RulesChanged);
    Ok(Reply::Done)
}

/// The default tenant can be given a record as well.
pub(super) fn put_tenant(tx: &mut Tx<'_>, tenant: &TenantRecord) -> Outcome {
    valid::text("the tenant's name", &tenant.name)?;
    tx.save(keys::tenant(&tenant.name), tenant);
    Ok(Reply::Done)
}

/// Its sessions stay: they end as they would anyway, without a limit from now on.
pub(super) fn remove_tenant(tx: &mut Tx<'_>, name: &str) -> Outcome {
    valid::text("the tenant's name", name)?;
    remove(tx, keys::tenant(name))?;
    Ok(Reply::Done)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::command::{Command, Refusal};
    use crate::state::testing::MapView;
    use crate::state::{read, samples};

    #[test]
    fn users_come_and_go() {
        let mut state = MapView::default();
        let user = samples::user();
        let (reply, effects) = state.run(1, Command::PutUser(user.clone()));
        assert_eq!((reply, effects), (Reply::Done, vec![Effect::UsersChanged]));
        let other = UserRecord { credentials: "other".into(), ..user.clone() };
        state.run(2, Command::PutUser(other.clone()));
        assert_eq!(read::user(&state, &user.name).expect("reads"), Some(other));
        let (reply, effects) = state.run(3, Command::RemoveUser { name: user.name.clone() });
        assert_eq!((reply, effects), (Reply::Done, vec![Effect::UsersChanged]));
        let reply = state.refuse(4, Command::RemoveUser { name: user.name.clone() });
        assert_eq!(reply, Reply::Refused(Refusal::NotFound));
        state.refuse(5, Command::PutUser(UserRecord { name: "a\0".into(), ..user.clone() }));
        state.refuse(5, Command::PutUser(UserRecord { tenant: "a\0".into(), ..user }));
        state.refuse(5, Command::RemoveUser { name: String::new() });
    }

    #[test]
    fn rules_are_tried_by_number() {
        let mut state = MapView::default();
        for id in [300, 2, 70_000, 1] {
            let (reply, effects) = state.run(1, Command::PutRule(samples::rule(id)));
            assert_eq!((reply, effects), (Reply::Done, vec![Effect::RulesChanged]));
        }
        let mut order = Vec::new();
        read::rules(&state, |rule| {
            order.push(rule.id);
            ControlFlow::Continue(())
        })
        .expect("reads");
        assert_eq!(order, [1, 2, 300, 70_000]);
        state.run(2, Command::RemoveRule { id: 300 });
        let reply = state.refuse(3, Command::RemoveRule { id: 300 });
        assert_eq!(reply, Reply::Refused(Refusal::NotFound));
        let bad = RuleRecord { filter: String::new(), ..samples::rule(1) };
        state.refuse(3, Command::PutRule(bad));
        let bad = RuleRecord { user: Some(String::new()), ..samples::rule(1) };
        state.refuse(3, Command::PutRule(bad));
    }

    #[test]
    fn tenants_come_and_go() {
        let mut state = MapView::default();
        for name in ["", "t"] {
            let tenant = TenantRecord { name: name.into(), max_sessions: 7 };
            assert_eq!(state.run(1, Command::PutTenant(tenant.clone())).0, Reply::Done);
            assert_eq!(read::tenant(&state, name).expect("reads"), Some(tenant));
            let gone = Command::RemoveTenant { name: name.into() };
            assert_eq!(state.run(2, gone.clone()).0, Reply::Done);
            assert_eq!(state.refuse(3, gone), Reply::Refused(Refusal::NotFound));
        }
        let bad = TenantRecord { name: "\0".into(), max_sessions: 0 };
        state.refuse(4, Command::PutTenant(bad));
    }
}

"""Coupons, and who has grabbed one."""

from __future__ import annotations

from django.conf import settings
from django.db import IntegrityError, models, transaction
from django.db.models import F, Q


class SoldOut(Exception):
    """Fewer coupons are left than were asked for."""


class AlreadyGrabbed(Exception):
    """This user has had this coupon."""


class Coupon(models.Model):
    """Something that is given away while stock lasts."""

    slug = models.SlugField(unique=True)
    title = models.CharField(max_length=100)
    stock = models.PositiveIntegerField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(stock__gte=0), name="coupon_never_oversold")]

    def __str__(self) -> str:
        return self.slug

    def grab(self, user_id: int, quantity: int = 1) -> Grab:
        """
        Hand coupons to a user, each user once and never more than the stock.

        Raises AlreadyGrabbed or SoldOut; either way nothing has changed.
        """
        if self.grabs.filter(user_id=user_id).exists():  # Spares those that ask again the write lock.
            raise AlreadyGrabbed
        try:
            with transaction.atomic():
                return self._hand_out(user_id, quantity)
        except IntegrityError as error:
            raise AlreadyGrabbed from error

    def _hand_out(self, user_id: int, quantity: int) -> Grab:
        left = Coupon.objects.filter(pk=self.pk, stock__gte=quantity)
        if not left.update(stock=F("stock") - quantity):
            raise SoldOut
        return self.grabs.create(user_id=user_id, quantity=quantity)


class Grab(models.Model):
    """The coupons that one user has had."""

    coupon = models.ForeignKey(Coupon, on_delete=models.CASCADE, related_name="grabs")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="grabs")
    quantity = models.PositiveSmallIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["coupon", "user"], name="one_grab_for_each_user")]

    def __str__(self) -> str:
        return f"{self.user_id} has {self.quantity} of {self.coupon_id}"

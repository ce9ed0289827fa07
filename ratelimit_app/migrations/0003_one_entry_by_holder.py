from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ratelimit_app", "0002_promotion_guards"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="blacklistentry",
            name="ratelimit_blacklisted_once",
        ),
        migrations.RemoveConstraint(
            model_name="blacklistentry",
            name="ratelimit_promoted_once",
        ),
        migrations.RemoveIndex(
            model_name="blacklistentry",
            name="ratelimit_blacklisted",
        ),
        migrations.AddField(
            model_name="blacklistentry",
            name="holder",
            field=models.GeneratedField(
                db_persist=True,
                expression=models.Case(
                    models.When(source="promoted", then=models.F("policy")),
                    default=models.Value(0),
                    output_field=models.BigIntegerField(null=True),
                ),
                output_field=models.BigIntegerField(null=True),
            ),
        ),
        migrations.AddConstraint(
            model_name="blacklistentry",
            constraint=models.UniqueConstraint(
                fields=("kind", "value", "source", "holder"),
                name="ratelimit_blacklisted_once",
                violation_error_message="This identity has such an entry already: extend that one.",
            ),
        ),
    ]
